"""open_checkpoint: the one way in, whatever the format."""

from pathlib import Path

from octavo.loaders.errors import bad_file
from octavo.models.checkpoint import Checkpoint


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Opens a GGUF file, or a folder in the Hugging Face layout, by what lies at `path`.

    Reads headers and vocabularies; weights stay on disk until a backend asks for them. Raises LoadError.
    """
    path = Path(path)
    kind = _kind(path)
    if kind == "folder":
        from octavo.loaders.directory import open_directory

        return open_directory(path)
    if kind == "file":
        from octavo.loaders.gguf_checkpoint import open_gguf

        return open_gguf(path)
    if kind == "special":
        raise bad_file(path, "this is a device, a pipe or a socket, neither a file nor a folder")
    raise bad_file(path, "there is no such file or folder")


def _kind(path: Path) -> str | None:
    """What lies there; None where nothing does."""
    try:
        if not path.exists():
            return None
        return "folder" if path.is_dir() else "file" if path.is_file() else "special"
    except (OSError, ValueError) as error:
        raise bad_file(path, str(error)) from None
