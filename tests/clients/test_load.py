"""Load generators count what the server counts, and no request of theirs fails. Only where they are installed.

They are the examples of docs/clients.md, with the programs under the folder that OCTAVO_TEST_PEERS names.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients import interpreter
from tests.clients.page import addressed, examples
from tests.clients.rest import check_rest
from tests.system.serving import Served

pytestmark = pytest.mark.slow
PEERS = Path(os.environ.get("OCTAVO_TEST_PEERS", "") or "nowhere")
MISSING = "{} is not there: OCTAVO_TEST_PEERS names the folder with the load generators"
NUM_REQUESTS, PROMPT_LEN, OUTPUT_LEN = 16, 64, 16
EXAMPLES = {text.split()[0]: text for text in examples("sh")}

Counts = tuple[int, int, float, float]
"""Requests that were answered, those that failed, and tokens of a prompt and of an answer."""


def of_vllm(found: dict[str, Any]) -> Counts:
    completed = found["completed"]
    return completed, found["failed"], found["total_input_tokens"] / completed, found["total_output_tokens"] / completed


def of_guidellm(found: dict[str, Any]) -> Counts:
    metrics = found["benchmarks"][0]["metrics"]
    totals = metrics["request_totals"]
    prompt, output = (metrics[name]["successful"]["mean"] for name in ("prompt_token_count", "output_token_count"))
    return totals["successful"], totals["errored"] + totals["incomplete"], prompt, output


def of_aiperf(found: dict[str, Any]) -> Counts:
    prompt, output = found["input_sequence_length"]["avg"], found["output_sequence_length"]["avg"]
    return int(found["request_count"]["avg"]), len(found["error_summary"]), prompt, output


READERS: dict[str, tuple[str, Callable[[dict[str, Any]], Counts]]] = {
    "vllm": ("vllm.json", of_vllm),
    "guidellm": ("guidellm.json", of_guidellm),
    "aiperf": ("artifacts/*/profile_export_aiperf.json", of_aiperf),
}
"""Program -> where it leaves what it found, and how to read it."""


def run(program: str, server: Served, folder: Path) -> Counts:
    """Runs the program's example in this folder; what it counted."""
    places = {f"{program} ": f"{PEERS / program / 'bin' / program} ", "TOKENIZER": str(PEERS / "smollm2-hf")}
    example = addressed(EXAMPLES[program], server, **places)
    offline = "unset HF_HUB_OFFLINE"  # with it aiperf takes a folder for the name of a repository
    interpreter.output_of("bash", "-euc", f"{offline}; cd {folder}; {example}")
    pattern, counts = READERS[program]
    [report] = folder.glob(pattern)
    return counts(json.loads(report.read_text(encoding="utf-8")))


@pytest.mark.parametrize("program", READERS)
def test_every_request_is_answered_and_tokens_are_counted_right(server: Served, program: str, tmp_path: Path) -> None:
    """In a chat the prompt has the template's tokens too, as many in each."""
    if not (PEERS / program / "bin" / program).exists():
        pytest.skip(MISSING.format(program))
    before = server.words().count("POST /v1/")
    answered, failed, prompt_len, output_len = run(program, server, tmp_path)
    assert (answered, failed, output_len) == (NUM_REQUESTS, 0, OUTPUT_LEN)
    assert prompt_len == PROMPT_LEN or (prompt_len == PROMPT_LEN + 30 and program != "vllm")
    assert server.words().count("POST /v1/") - before >= NUM_REQUESTS
    check_rest(server)
