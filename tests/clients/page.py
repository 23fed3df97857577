"""The examples of docs/clients.md, as they are run."""

import re

from tests.layout.project import ROOT
from tests.system.serving import MODEL, Served

PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
ADDRESS, DEFAULT = "http://127.0.0.1:8000", "smollm2-135m-instruct"


def examples(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def example_of(package: str) -> str:
    """The one in Python that imports this package."""
    [text] = (text for text in examples("python") if re.search(rf"^(?:from|import) {package}\b", text, re.MULTILINE))
    return text


def addressed(text: str, server: Served, **places: str) -> str:
    """An example with this server's address and model name, and what it leaves to its reader."""
    assert ADDRESS in text
    for name, value in {ADDRESS: server.url, DEFAULT: MODEL, **places}.items():
        text = text.replace(name, value)
    return text
