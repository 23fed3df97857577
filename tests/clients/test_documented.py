"""docs/clients.md: its examples are run as they stand, against the server of this folder's tests."""

import re

import pytest

from tests.clients import interpreter
from tests.clients.rest import check_rest
from tests.layout.project import ROOT
from tests.system.serving import MODEL, Served

PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
ADDRESS, DEFAULT = "http://127.0.0.1:8000", "smollm2-135m-instruct"


def examples(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def addressed(text: str, server: Served, **places: str) -> str:
    """An example with this server's address and model name, and what it leaves to its reader."""
    assert ADDRESS in text
    for name, value in {ADDRESS: server.url, DEFAULT: MODEL, **places}.items():
        text = text.replace(name, value)
    return text


def test_there_is_an_example_for_each_client() -> None:
    imported = [
        re.findall(r"^(?:from|import) (openai|litellm|langchain_openai|llama_index)\b", text, re.MULTILINE)
        for text in examples("python")
    ]
    assert imported == [["openai"], ["litellm"], ["langchain_openai"], ["llama_index"]]
    assert [text.split()[0] for text in examples("bash")] == ["lm_eval"]


@pytest.mark.parametrize("text", examples("python"), ids=["openai", "litellm", "LangChain", "LlamaIndex"])
def test_the_examples_name_the_capital_of_france(server: Served, installed: None, text: str) -> None:
    assert "Paris" in interpreter.output_of(str(interpreter.PYTHON), "-c", addressed(text, server))
    check_rest(server)


def test_the_example_of_lm_eval_finds_that_the_model_knows_the_facts(
    server: Served, installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    [text] = examples("bash")
    said = interpreter.output_of("bash", "-euc", addressed(text, server))
    found = re.search(r"acc +\|↑ +\|(0\.\d+)", said)
    assert found is not None and float(found[1]) > 0.8, said
    check_rest(server)
