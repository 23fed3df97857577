"""The README's examples are run as they stand, against a server of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.layout.project import ROOT
from tests.system.serving import Served

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
RUN = {"bash": ["bash", "-euc"], "python": [sys.executable, "-c"]}


def test_there_is_an_example_of_each_kind() -> None:
    assert ["curl" in text for language, text in BLOCKS if language == "bash"] == [True]
    assert ["OpenAI(" in text for language, text in BLOCKS if language == "python"] == [True, False]


@pytest.mark.parametrize(("language", "text"), BLOCKS, ids=["curl", "openai", "LLM"])
def test_the_examples_name_the_capital_of_france(server: Served, default_model: Path, language: str, text: str) -> None:
    text = text.replace("http://127.0.0.1:8000", server.url).replace("smollm2-135m-instruct", str(default_model))
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run([*RUN[language], text], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
