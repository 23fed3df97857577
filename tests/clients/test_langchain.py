"""langchain-openai: ChatOpenAI and OpenAI."""

from collections.abc import Callable
from typing import Any

import pytest

FRANCE = "The capital of France is Paris."


@pytest.fixture(scope="module")
def said(ask: Callable[[str, str], Any]) -> Any:
    return ask("langchain_openai", "langchain_client")


def test_the_documented_example_names_the_capital_of_france(said: Any) -> None:
    assert "Paris" in said["documented"]


def test_answers_are_the_same_whole_streamed_and_together(said: Any) -> None:
    together = said["together"]
    assert said["whole"]["text"] == said["streamed"]["text"] == "".join(together["chunks"]) == FRANCE
    assert together["batch"] == [FRANCE] * 4 and len(together["chunks"]) > 3
    assert said["whole"]["end"] == said["streamed"]["end"] == "stop"
    assert said["continued"]["whole"] == said["continued"]["streamed"] and said["continued"]["whole"].startswith(
        " Paris"
    )


def test_usage_is_there_once_also_in_a_stream(said: Any) -> None:
    """Chunks are summed: usage in two of them would be twice as much."""
    for way in ("whole", "streamed"):
        usage = said[way]["usage"]
        assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (37, 8, 45)
    assert said["streamed"]["usage"]["input_token_details"]["cache_read"] >= 32


def test_tools_are_called_and_their_results_go_back(said: Any) -> None:
    assert len(said["called"]["calls"]) == 2
    for call in said["called"]["calls"]:
        assert call["name"] == "get_weather" and call["args"]["city"] in ("Rome", "Oslo") and len(call["args"]) == 1
    assert said["called"]["after"] > said["called"]["before"], "the call and its result are in the prompt"


def test_answers_are_read_into_a_class_in_all_three_ways(said: Any) -> None:
    assert [shaped["city"] for shaped in said["shaped"]] == ["Paris"] * 3


def test_logprobs_are_passed_on(said: Any) -> None:
    first = said["first_logprob"]
    assert first["token"] == "The" and first["logprob"] == max(top["logprob"] for top in first["top_logprobs"]) < 0


def test_documents_and_queries_are_embedded_alike(said: Any) -> None:
    france, oslo, again = said["embedded"]["documents"]
    assert france == again != oslo == said["embedded"]["query"] and len(oslo) == 576


def test_responses_are_the_same_answers(said: Any) -> None:
    responses = said["responses"]
    assert responses["texts"] == [FRANCE] * 2 and responses["shaped"]["city"] == "Paris"
    assert [usage["output_tokens"] for usage in responses["usage"]] == [8, 8]
    assert responses["called"] == "get_weather"


def test_a_prompt_that_is_too_long_is_the_error_that_agents_catch(said: Any) -> None:
    assert "ContextOverflowError" in said["refused"]
