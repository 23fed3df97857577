"""lm_eval's scores through the server are those that it finds with Transformers on the same float32 weights.

tests/golden/lm_eval.json has Transformers' side. The tasks are 40 multiple-choice items, 5 documents whose perplexity
is measured and 8 questions; one item has an empty context, and one document is longer than the context of both sides.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients import interpreter
from tests.clients.rest import check_rest
from tests.system.serving import MODEL, Served, serving

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "lm_eval.json").read_text("utf-8"))
FACTS, PROSE, QUESTIONS = "octavo_facts", "octavo_prose", "octavo_questions"
FLOAT32 = ("--dtype", "float32", "--kv-cache-dtype", "float32", "--max-model-len", "1024")
MAX_LENGTH = 128
"""lm_eval's API models keep two places free: the windows of a long document are those of the golden file's 126."""
LOGLIKELIHOOD_ERROR = 2e-4
"""Of a continuation: a few float32 logprobs in another order of additions. Measured: 4.5e-5."""
ROLLING_ERROR = 1e-5
"""Of a document, relative. Measured: 2.7e-6."""
RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ids": ({"num_concurrent": 8, "batch_size": 2}, {"tasks": [FACTS, PROSE, QUESTIONS]}),
    "ids, many in a body": ({"batch_size": 16}, {"tasks": [FACTS], "limit": 8}),
    "texts": ({"num_concurrent": 4, "tokenized_requests": False}, {"tasks": [PROSE, QUESTIONS]}),
}
"""How lm_eval sends what. It takes its tokenizer from the server by itself, and sends ids unless told not to."""


def completions(url: str, **model_args: Any) -> dict[str, Any]:
    return {"model": MODEL, "base_url": f"{url}/v1/completions", "max_length": MAX_LENGTH, **model_args}


def chats(url: str, **model_args: Any) -> dict[str, Any]:
    return {"model": MODEL, "base_url": f"{url}/v1/chat/completions", **model_args}


@pytest.fixture(scope="module")
def server(default_model: Path) -> Iterator[Served]:
    """Texts begin with a BOS where lm_eval has put one, so they are trusted to have control tokens."""
    with serving(str(default_model), *FLOAT32, "--allow-special-tokens-in-text") as server:
        yield server
        check_rest(server)


@pytest.fixture(scope="module")
def found(server: Served, installed: None) -> dict[str, Any]:
    """What each run finds. One process for all: it takes longer to start than a run takes."""
    runs = [
        {"model": "local-completions", "model_args": completions(server.url, **args), **run}
        for args, run in RUNS.values()
    ]
    chat = {"model": "local-chat-completions", "model_args": chats(server.url, num_concurrent=4)}
    runs.append({**chat, "tasks": [QUESTIONS], "chat": True})
    _, said = interpreter.said("lm_eval_client", json.dumps(runs))
    return dict(zip([*RUNS, "chat"], said, strict=True))


def flat(lists: list[list[Any]]) -> list[Any]:
    return [item for each in lists for item in each]


def golden(kind: str, task: str) -> Any:
    return GOLDEN["plain"][kind][task]


@pytest.mark.parametrize(("run", "number"), [("ids", 40), ("ids, many in a body", 8)])
def test_each_choice_is_as_likely_as_transformers_finds_it(found: dict[str, Any], run: str, number: int) -> None:
    """And greedy where it does: lm_eval compares the token's float with the best one's."""
    ours, theirs = found[run]["samples"][FACTS], golden("samples", FACTS)[:number]
    assert [len(choices) for choices in ours] == [len(choices) for choices in theirs] == [4] * number
    for mine, (loglikelihood, greedy) in zip(flat(ours), flat(theirs), strict=True):
        assert mine == [pytest.approx(loglikelihood, abs=LOGLIKELIHOOD_ERROR), greedy]


def test_scores_are_those_of_transformers(found: dict[str, Any]) -> None:
    assert found["ids"]["scores"][FACTS] == golden("scores", FACTS)
    assert 0.5 < golden("scores", FACTS)["acc"] < 1, "the items tell a model that knows them from one that does not"


@pytest.mark.parametrize("run", ["ids", "texts"])
def test_perplexities_are_those_of_transformers(found: dict[str, Any], run: str) -> None:
    ours, theirs = flat(found[run]["samples"][PROSE]), flat(golden("samples", PROSE))
    assert ours == pytest.approx(theirs, rel=ROLLING_ERROR) and len(theirs) == 5
    assert found[run]["scores"][PROSE] == pytest.approx(golden("scores", PROSE), rel=5 * ROLLING_ERROR), (
        "e to the 5 a word"
    )


@pytest.mark.parametrize("run", ["ids", "texts"])
def test_answers_are_those_of_transformers(found: dict[str, Any], run: str) -> None:
    assert found[run]["samples"][QUESTIONS] == golden("samples", QUESTIONS)
    assert found[run]["scores"][QUESTIONS] == golden("scores", QUESTIONS)


def test_answers_in_a_chat_are_those_of_transformers(found: dict[str, Any]) -> None:
    assert found["chat"]["samples"][QUESTIONS] == GOLDEN["chat"]["samples"][QUESTIONS]
    assert found["chat"]["scores"] == GOLDEN["chat"]["scores"]
