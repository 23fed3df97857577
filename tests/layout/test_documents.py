"""Documents that list files list exactly the files that are there."""

import re
import tomllib
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


def test_each_base_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = {re.split(r"[<>=;\[ ]", requirement)[0] for requirement in project["dependencies"]}
    text = (ROOT / "docs" / "decisions" / "dependencies.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^\| `([\w-]+)` \|", section(text, "Base install"), re.MULTILINE))
    assert explained == wanted


def test_links_between_documents_lead_somewhere() -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in source_files(".md")
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
        if not target.startswith(("http://", "https://", "mailto:")) and not (path.parent / target).exists()
    ]
    assert not broken
