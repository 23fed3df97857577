"""llama-index: OpenAILike, which asks /v1/completions unless it is told that the model chats."""

from collections.abc import Callable
from typing import Any

import pytest

FRANCE = "The capital of France is Paris."


@pytest.fixture(scope="module")
def said(ask: Callable[[str, str], Any]) -> Any:
    return ask("llama_index", "llama_index_client")


def test_the_documented_example_names_the_capital_of_france(said: Any) -> None:
    assert "Paris" in said["documented"]


def test_completions_are_the_same_whole_and_streamed(said: Any) -> None:
    assert said["continued"]["whole"] == said["continued"]["streamed"] and said["continued"]["whole"].startswith(
        " Paris"
    )


def test_chats_are_the_same_whole_streamed_and_together(said: Any) -> None:
    chatted = said["chatted"]
    assert [chatted["whole"], chatted["streamed"], chatted["completed"], *said["together"]] == [FRANCE] * 8
    assert (chatted["usage"]["prompt_tokens"], chatted["usage"]["completion_tokens"]) == (37, 8)


def test_tools_are_called_and_their_results_go_back(said: Any) -> None:
    assert len(said["called"]["calls"]) == 2
    for call in said["called"]["calls"]:
        assert call["name"] == "get_weather" and call["args"]["city"] in ("Rome", "Oslo")
    assert said["called"]["after"] > said["called"]["before"], "the call and its result are in the prompt"


def test_answers_are_read_into_a_class(said: Any) -> None:
    assert [shaped["city"] for shaped in said["shaped"]] == ["Paris"] * 2
