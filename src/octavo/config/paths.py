"""Where files of ours lie on this machine."""

from pathlib import Path

from octavo.config.sources import CACHE_ENV, environment_path


def cache_dir() -> Path:
    """Folder for downloaded models, which may not exist yet.

    OCTAVO_CACHE_DIR, else XDG_CACHE_HOME/octavo, else ~/.cache/octavo.
    """
    own = environment_path(CACHE_ENV)
    if own is not None:
        return own
    base = environment_path("XDG_CACHE_HOME")
    return (base if base is not None and base.is_absolute() else Path.home() / ".cache") / "octavo"
