"""Documents that list files list exactly the files that are there."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.layout.project import PACKAGE, ROOT, modules, packages, source_files, tree

HEADINGS = ("Decides", "Must never know", "Files in reading order", "Laws", "How it is tested")


def section(text: str, heading: str) -> str:
    """The text under a second-level heading, up to the next one."""
    match = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert match, f"no heading '## {heading}'"
    return match[1]


@pytest.mark.parametrize("folder", packages(), ids=lambda folder: folder.relative_to(PACKAGE).as_posix())
def test_each_package_explains_itself(folder: Path) -> None:
    if folder == PACKAGE:
        return  # docs/map.md and README.md speak for the top
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == list(HEADINGS)
    assert len(text.splitlines()) <= 60
    listed = set(re.findall(r"`(\w+\.py)`", section(text, "Files in reading order")))
    present = {path.name for path in source_files(".py", under=folder) if path.parent == folder}
    assert listed == present - {"__init__.py"}


def test_the_map_has_one_sentence_for_each_module() -> None:
    text = (ROOT / "docs" / "map.md").read_text(encoding="utf-8")
    rows = re.findall(r"^- `(octavo[\w.]*)`: (.+)$", text, re.MULTILINE)
    names = [name for name, _ in rows]
    assert len(names) == len(set(names))
    speaking = {name for name, path in modules().items() if path.name != "__init__.py" or tree(path).body}
    assert set(names) == speaking
    assert not [name for name, sentence in rows if not sentence.endswith(".")]


def base_dependencies() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return {re.split(r"[<>=;\[ ]", requirement)[0] for requirement in project["dependencies"]}


def test_each_base_dependency_has_its_reason() -> None:
    text = (ROOT / "docs" / "decisions" / "dependencies.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^\| `([\w-]+)` \|", section(text, "Base install"), re.MULTILINE))
    assert explained == base_dependencies()


def test_each_base_dependency_is_imported_and_each_import_is_declared() -> None:
    """httptools is chosen by its name, in uvicorn's settings; pydantic_core is pydantic's own other half."""
    distributions = packages_distributions()
    imported = {
        distributions[name][0].lower().replace("_", "-")
        for path in source_files(".py", under=PACKAGE)
        for node in ast.walk(tree(path))
        if (name := _top_level(node)) and name not in sys.stdlib_module_names | {"octavo"}
    }
    assert imported - {"pydantic-core"} == base_dependencies() - {"httptools"}


def _top_level(node: ast.AST) -> str:
    """The package that an absolute import names first, or nothing."""
    if isinstance(node, ast.Import):
        return node.names[0].name.split(".")[0]
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        return (node.module or "").split(".")[0]
    return ""


def test_links_between_documents_lead_somewhere() -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in source_files(".md")
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
        if not target.startswith(("http://", "https://", "mailto:")) and not (path.parent / target).exists()
    ]
    assert not broken
