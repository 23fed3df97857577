"""The client that people use, for real."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel, Field

from tests.server.site import PATIENCE_S, Site

MESSAGES: Any = [{"role": "user", "content": "the"}]


@pytest.fixture
def client(site: Site) -> Iterator[openai.OpenAI]:
    with openai.DefaultHttpxClient(trust_env=False) as http:
        yield openai.OpenAI(
            base_url=f"{site.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S, http_client=http
        )


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "octavo"


def test_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=9, temperature=0, logprobs=True)
    assert whole.choices[0].message.role == "assistant" and whole.usage is not None and whole.choices[0].logprobs
    assert whole.usage.prompt_tokens_details is not None
    with client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        max_tokens=9,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt=["the", "an"], max_tokens=3, temperature=0, logprobs=2)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].logprobs is not None and len(answer.choices[0].logprobs.tokens or ()) == 3


def test_vllm_fields_go_through_extra_body(client: openai.OpenAI) -> None:
    extra = {"ignore_eos": True, "top_k": 1, "min_tokens": 2}
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=7, extra_body=extra)
    assert answer.usage is not None and answer.usage.completion_tokens == 7


def test_errors_are_the_clients_own_kinds(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=-1)
    assert bad.value.param == "temperature" and bad.value.code == "invalid_value"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=MESSAGES)


def test_thirty_two_clients_get_their_own_answers(site: Site) -> None:
    """Each as if it were alone."""

    def ask(number: int) -> str:
        body = {"messages": [{"role": "user", "content": f"{number} the"}], "max_tokens": 8, "temperature": 0}
        return httpx.post(f"{site.url}/v1/chat/completions", json=body, timeout=PATIENCE_S, trust_env=False).json()[
            "choices"
        ][0]["message"]["content"]

    with ThreadPoolExecutor(32) as pool:
        together = list(pool.map(ask, range(32)))
    assert together == [ask(number) for number in range(32)]
    assert len(set(together)) > 8


class Weather(BaseModel):
    """What a script hands over as the form of an answer."""

    city: Literal["Paris", "Rome"]
    degrees: list[Annotated[int, Field(ge=-5, le=9)]] = Field(min_length=1, max_length=2)
    wind: "Wind | None"


class Wind(BaseModel):
    from_: Literal["north", "south"]


def test_answers_are_parsed_into_classes(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(
        model="tiny", messages=MESSAGES, max_tokens=120, temperature=1, seed=4, response_format=Weather
    )
    weather = parsed.choices[0].message.parsed
    assert isinstance(weather, Weather) and parsed.choices[0].finish_reason == "stop"
    with client.chat.completions.stream(
        model="tiny", messages=MESSAGES, max_tokens=120, temperature=1, seed=4, response_format=Weather
    ) as stream:
        stream.until_done()
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == weather
