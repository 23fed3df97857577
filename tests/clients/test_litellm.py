"""litellm, by its routes for vLLM, plain completions, OpenAI's Responses and Anthropic's Messages."""

from collections.abc import Callable
from typing import Any

import pytest

FRANCE = "The capital of France is Paris."


@pytest.fixture(scope="module")
def said(ask: Callable[[str, str], Any]) -> Any:
    return ask("litellm", "litellm_client")


def test_the_documented_example_names_the_capital_of_france(said: Any) -> None:
    assert "Paris" in said["documented"]


def test_answers_are_the_same_whole_streamed_and_together(said: Any) -> None:
    assert [said["whole"]["text"], said["streamed"]["text"], *said["together"]] == [FRANCE] * 6
    assert said["streamed"]["ids"] == 1
    assert said["continued"].startswith(" Paris")


def test_texts_are_embedded_in_their_order(said: Any) -> None:
    france, oslo, again = said["embedded"]
    assert france == again != oslo and len(oslo) == 576


def test_usage_is_that_of_the_server_also_in_a_stream(said: Any) -> None:
    counted = [(each["usage"]["prompt_tokens"], each["usage"]["completion_tokens"]) for each in map(said.get, USAGES)]
    assert counted == [(37, 8), (37, 8)]
    assert said["streamed"]["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32


USAGES = ("whole", "streamed")


def test_tools_are_called(said: Any) -> None:
    """Whether demanded, named or streamed. litellm leaves `additionalProperties` out of the schema that it sends."""
    for call in said["called"]:
        assert (call["name"], call["arguments"]["city"] in ("Rome", "Oslo"), call["end"]) == (
            "get_weather",
            True,
            "tool_calls",
        )


def test_responses_and_messages_are_the_same_answers(said: Any) -> None:
    assert said["in_other_words"] == [FRANCE] * 3


def test_an_answer_is_read_into_a_class(said: Any) -> None:
    assert said["shaped"] == {"city": "Paris", "country": "France"}


def test_errors_are_the_kinds_that_callers_catch(said: Any) -> None:
    """The others are what `context_window_fallbacks` go by."""
    assert said["refused"] == ["BadRequestError", "ContextWindowExceededError", "ContextWindowExceededError"]
