"""docs/clients.md: its examples are run as they stand. Those of litellm, LangChain and LlamaIndex, where these are."""

import re
import subprocess
import sys

import pytest

from tests.clients import interpreter
from tests.clients.page import addressed, example_of, examples
from tests.layout.project import ROOT
from tests.system.serving import Served

RUN = ["openai", "litellm", "langchain_openai", "llama_index"]


def test_there_is_an_example_for_each_client_and_each_is_run() -> None:
    assert [example_of(package) for package in RUN] == examples("python")
    assert [text.split()[0] for text in examples("bash")] == ["lm_eval"]


def test_the_example_of_openai_names_the_capital_of_france(visited: Served) -> None:
    text = addressed(example_of("openai"), visited)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "Paris" in done.stdout, done.stderr


def test_the_example_of_lm_eval_finds_that_the_model_knows_the_facts(
    visited: Served, installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    [text] = examples("bash")
    said = interpreter.output_of("bash", "-euc", addressed(text, visited))
    found = re.search(r"acc +\|↑ +\| *(\d\.\d+)", said)
    assert found is not None and float(found[1]) > 0.8, said
