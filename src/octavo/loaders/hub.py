"""Names to paths: a path, a name of the catalogue, or an id of the Hugging Face Hub becomes something to open."""

import difflib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from octavo.config.paths import cache_dir
from octavo.loaders.errors import LoadError
from octavo.loaders.pull import Progress, cached_path, pull_model
from octavo.models.catalog import DEFAULT_MODEL, CatalogModel, find_model, model_names

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
FOLDER_FILES = (
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
"""What of a repository on the Hub is downloaded: never its other formats, and never code."""


def no_progress(done_bytes: int, total_bytes: int, text: str) -> None:
    """A Progress that tells nobody."""


def models_folder(cache: Path | None = None) -> Path:
    """Where pulled models lie; `cache` is the user's cache folder of this program, by default the configured one."""
    return (cache_dir() if cache is None else cache) / "models"


def resolve(name_or_path: str | Path, progress: Progress = no_progress, *, cache: Path | None = None) -> Path:
    """The local file or folder that a model's name stands for, fetched first where it has to be. Raises LoadError.

    In this order: an existing path; a name of the catalogue; `org/name` on the Hugging Face Hub (the safetensors
    folder), or `org/name:PART` (the one GGUF file there whose name contains PART, whatever the case).
    """
    path = local_path(name_or_path)
    if path is not None:
        return path
    name = str(name_or_path)
    model = find_model(name)
    if model is not None:
        return pull_model(model, models_folder(cache), progress)
    repository, _, part = name.partition(":")
    if HUB_ID.fullmatch(repository) and not name.endswith(".gguf"):
        return download_gguf(repository, part, progress) if part else download_folder(repository, progress)
    raise LoadError(_unknown(name))


def pull(name: str, progress: Progress = no_progress, *, cache: Path | None = None) -> Path:
    """Like `resolve`, but for names only: a local path is no name."""
    if find_model(name) is None and local_path(name) is not None:
        raise LoadError(f"{name} is already on this machine")
    return resolve(name, progress, cache=cache)


def default_model_path(progress: Progress = no_progress, *, cache: Path | None = None) -> Path:
    """The default model's file, fetched first where it is missing."""
    return pull_model(DEFAULT_MODEL, models_folder(cache), progress)


def is_cached(model: CatalogModel, *, cache: Path | None = None) -> bool:
    """Whether opening this model needs no download."""
    return cached_path(model, models_folder(cache)) is not None


def download_folder(
    repository: str, progress: Progress, *, into: Path | None = None, endpoint: str | None = None
) -> Path:
    """A repository's safetensors folder, in the Hub's own cache or `into` another. A cached one serves when offline."""
    from huggingface_hub import snapshot_download

    progress(0, 0, f"downloading {repository} from the Hugging Face Hub")
    with _hub_errors(repository):
        folder = snapshot_download(repository, allow_patterns=[*FOLDER_FILES], cache_dir=into, endpoint=endpoint)
    return Path(str(folder))


def download_gguf(
    repository: str, part: str, progress: Progress, *, into: Path | None = None, endpoint: str | None = None
) -> Path:
    """The one GGUF file of a repository whose name contains `part`; LoadError lists the files where it is not one.

    Like `download_folder`: a cached one serves when offline.
    """
    from huggingface_hub import hf_hub_download

    with _hub_errors(repository):
        names = _gguf_names(repository, into, endpoint)
    chosen = [name for name in names if part.lower() in name.lower()]
    if len(chosen) != 1:
        raise LoadError(f"{repository}:{part} fits {len(chosen)} GGUF files; there are: {', '.join(names) or 'none'}")
    progress(0, 0, f"downloading {chosen[0]} of {repository} from the Hugging Face Hub")
    with _hub_errors(repository):
        return Path(str(hf_hub_download(repository, chosen[0], cache_dir=into, endpoint=endpoint)))


def _gguf_names(repository: str, into: Path | None, endpoint: str | None) -> list[str]:
    """Its GGUF files: those on the Hub, or those in the cache where the Hub cannot be asked."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        siblings = HfApi(endpoint=endpoint).model_info(repository).siblings or []
    except Exception as error:  # noqa: BLE001 - offline has many names; whatever it is, a cached file is better
        try:
            folder = Path(str(snapshot_download(repository, cache_dir=into, local_files_only=True)))
        except LocalEntryNotFoundError:
            raise error from None
        return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf"))
    return [file.rfilename for file in siblings if file.rfilename.endswith(".gguf")]


@contextmanager
def _hub_errors(repository: str) -> Iterator[None]:
    """Whatever goes wrong between here and the Hub as a LoadError of one line."""
    try:
        yield
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise LoadError(
            f"cannot get {repository} from the Hugging Face Hub (is this machine offline, the name wrong, or access"
            f" restricted?): {reason}"
        ) from error


def local_path(name: str | Path) -> Path | None:
    """The path of that name, if something is there; what cannot be a path at all is not there either."""
    try:
        path = Path(name).expanduser()
        return path if str(name) and path.exists() else None
    except (OSError, RuntimeError, ValueError):
        return None


def _unknown(name: str) -> str:
    if name.endswith(".gguf") or name.startswith((".", "/", "~")):
        return f"{name}: there is no such file or folder"
    close = difflib.get_close_matches(name.lower(), model_names(), n=3)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return (
        f"there is no model {name!r}: no such file or folder, not in the catalogue ({', '.join(model_names())}),"
        f" and not an id like org/name{hint}"
    )
