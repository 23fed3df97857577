"""Sizes, names and leftovers: what makes a tree readable, checked."""

import ast
import re
from pathlib import Path

import pytest

from tests.layout.project import ROOT, source_files, tracked_files, tree

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60

LONG_FILES: dict[str, str] = {}
"""Path -> why it may be longer than MAX_FILE_LINES."""

LONG_FUNCTIONS: dict[str, str] = {}
"""path:function -> why it may be longer than MAX_FUNCTION_LINES."""

CODE = (".py", ".cpp", ".h", ".inl")
VAGUE_NAMES = {"utils", "util", "common", "helper", "helpers", "base", "misc"}
MACHINE_PATHS = re.compile(r"(?<![\w.~-])/(?:root|home|Users|work|tmp)/[\w.-]+")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_file_is_too_long_to_read() -> None:
    lengths = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in source_files(*CODE)}
    too_long = {name: length for name, length in lengths.items() if length > MAX_FILE_LINES}
    assert too_long.keys() == LONG_FILES.keys(), f"over {MAX_FILE_LINES} lines: {too_long}; listed: {LONG_FILES}"


def test_no_function_is_too_long_to_read() -> None:
    functions = {
        f"{relative(path)}:{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in source_files(".py")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    too_long = {name: length for name, length in functions.items() if length > MAX_FUNCTION_LINES}
    assert too_long.keys() == LONG_FUNCTIONS.keys(), f"over {MAX_FUNCTION_LINES} lines: {too_long}"


def test_names_say_what_is_inside() -> None:
    vague = [relative(path) for path in source_files(*CODE) if VAGUE_NAMES & {path.stem, *path.relative_to(ROOT).parts}]
    assert not vague


@pytest.mark.parametrize("word", ["TO" + "DO", "FIX" + "ME", "XX" + "X"])
def test_nothing_is_left_for_later(word: str) -> None:
    found = [relative(path) for path in source_files(*CODE) if re.search(rf"\b{word}\b", path.read_text("utf-8"))]
    assert not found


def test_no_tracked_file_names_a_path_of_one_machine() -> None:
    found = [
        f"{relative(path)}:{number}: {match[0]}"
        for path in tracked_files()
        if path.suffix in (*CODE, ".md", ".toml", ".txt", ".json", ".yml", ".sh", "") and path.name != "LICENSE"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (match := MACHINE_PATHS.search(line))
    ]
    assert not found
