"""The project's files as the layout tests see them: what a commit could hold."""

import ast
import os
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "octavo"


@cache
def tracked_files() -> tuple[Path, ...]:
    """All files but those that `.gitignore` names; works without git, so in an unpacked archive too."""
    ignored = (".git", *(line.rstrip("/") for line in (ROOT / ".gitignore").read_text("utf-8").split()))
    found: list[Path] = []
    for folder, subfolders, names in os.walk(ROOT):
        subfolders[:] = [name for name in subfolders if not _matches(name, ignored)]
        found += [Path(folder, name) for name in names if not _matches(name, ignored)]
    return tuple(sorted(found))


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def source_files(*suffixes: str, under: Path = ROOT) -> tuple[Path, ...]:
    return tuple(path for path in tracked_files() if path.suffix in suffixes and path.is_relative_to(under))


def modules() -> dict[str, Path]:
    """Dotted name -> file, for all modules and packages of `octavo`."""
    return {_module_name(path): path for path in source_files(".py", under=PACKAGE)}


def _module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
