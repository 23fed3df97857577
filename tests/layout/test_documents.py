"""Documents that list files list exactly the files that are there."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.layout.map import document, sentence, speaking_modules
from tests.layout.project import PACKAGE, ROOT, source_files, tree

OUR_EXTRAS = {"test", "bench", "check", "clients", "deploy", "dev"}
"""What those who work on Octavo need, and no user of it."""
HEADINGS = ("Decides", "Must never know", "Files in reading order", "Laws", "How it is tested")


def section(text: str, heading: str) -> str:
    """The text under a second-level heading, up to the next one."""
    match = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert match, f"no heading '## {heading}'"
    return match[1]


def nearest_readme(path: Path) -> Path:
    """The README that speaks for a module: the first one upwards."""
    return next(readme for folder in path.parents if (readme := folder / "README.md").is_file())


def room_readmes() -> dict[Path, set[str]]:
    """README -> the names of the modules that it speaks for."""
    readmes: dict[Path, set[str]] = {}
    for path in source_files(".py", under=PACKAGE):
        if path.name != "__init__.py" and path.parent != PACKAGE:  # docs/map.md and /README.md speak for the top
            readmes.setdefault(nearest_readme(path), set()).add(path.name)
    return readmes


def test_each_package_has_a_readme() -> None:
    assert room_readmes().get(ROOT / "README.md", set()) == set()


@pytest.mark.parametrize(
    "readme", sorted(room_readmes().keys() - {ROOT / "README.md"}), ids=lambda readme: readme.parent.name
)
def test_a_readme_names_exactly_the_files_that_are_there(readme: Path) -> None:
    text = readme.read_text(encoding="utf-8")
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == list(HEADINGS)
    assert len(text.splitlines()) <= 60
    listed = re.findall(r"`(?:\w+/)?(\w+\.py)`", section(text, "Files in reading order"))
    assert set(listed) == room_readmes()[readme]


def test_each_module_says_what_it_is() -> None:
    assert not [name for name, path in speaking_modules().items() if not sentence(path)]


def test_the_map_is_made_from_the_modules() -> None:
    assert (ROOT / "docs" / "map.md").read_text(encoding="utf-8") == document(), "run `make docs`"


def test_the_index_of_decisions_lists_all_of_them() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"^- \[([\w-]+\.md)\]\(\1\): .+\.$", (folder / "README.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted({path.name for path in source_files(".md", under=folder)} - {"README.md"})


def base_dependencies() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return {_name(requirement) for requirement in project["dependencies"]}


def _name(requirement: str) -> str:
    return re.split(r"[<>=;\[ ]", requirement)[0]


def test_each_base_dependency_has_its_reason() -> None:
    text = (ROOT / "docs" / "decisions" / "dependencies.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^\| `([\w-]+)` \|", section(text, "Base install"), re.MULTILINE))
    assert explained == base_dependencies()


def test_each_base_dependency_is_imported_and_each_import_is_declared() -> None:
    """httptools is chosen by its name, in uvicorn's settings; pydantic_core is pydantic's own other half."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    distributions = packages_distributions()
    extras = project["optional-dependencies"]
    wanted_by_some = {_name(line) for extra in extras.keys() - OUR_EXTRAS for line in extras[extra]}
    imported = {
        _distribution(distributions[name], wanted_by_some)
        for path in source_files(".py", under=PACKAGE)
        for node in ast.walk(tree(path))
        if (name := _top_level(node)) and name not in sys.stdlib_module_names | {"octavo"}
    }
    assert imported - {"pydantic-core", *wanted_by_some} == base_dependencies() - {"httptools"}


def _distribution(names: list[str], declared: set[str]) -> str:
    """Of all distributions that share a name to import, one that is declared."""
    found = [name.lower().replace("_", "-") for name in names]
    return next((name for name in found if name in declared), found[0])


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
