"""openai, the client itself, against the default model: threads, tasks, streams, tools, classes, and going away."""

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict

from tests.system.serving import MODEL, Served

FRANCE: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
OSLO: list[Any] = [{"role": "user", "content": "How warm is it in Oslo?"}]
ANSWER = "The capital of France is Paris."
ASKED: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 60}


class Capital(BaseModel):
    city: str
    country: Literal["France", "Italy"]


class GetWeather(BaseModel):
    """The weather in a city."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Rome", "Oslo"]


@pytest.fixture
def client(visited: Served) -> Iterator[OpenAI]:
    with visited.client() as client:
        yield client


def in_tasks(server: Served, work: Any) -> Any:
    """What `work` returns, with a client that lives in an event loop."""

    async def run() -> Any:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
            return await work(client)

    return asyncio.run(run())


def test_many_tasks_at_once_whole_and_streamed(visited: Served) -> None:
    async def whole(client: AsyncOpenAI) -> str | None:
        return (await client.chat.completions.create(messages=FRANCE, **ASKED)).choices[0].message.content

    async def streamed(client: AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(messages=FRANCE, stream=True, **ASKED)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def work(client: AsyncOpenAI) -> list[str]:
        return await asyncio.gather(*(ask(client) for ask in (whole, streamed) for _ in range(8)))

    assert in_tasks(visited, work) == [ANSWER] * 16


def test_a_stream_that_is_left_ends_in_the_engine(visited: Served) -> None:
    """Each of these would take minutes; at rest after them means that they were cancelled."""

    async def leave(client: AsyncOpenAI) -> str:
        fields = {**ASKED, "max_tokens": 4000, "extra_body": {"ignore_eos": True}}
        stream = await client.chat.completions.create(messages=FRANCE, stream=True, **fields)
        async for chunk in stream:
            return chunk.id
        return ""

    async def work(client: AsyncOpenAI) -> list[str]:
        return await asyncio.gather(*(leave(client) for _ in range(4)))

    assert len(set(in_tasks(visited, work))) == 4


def test_a_clients_own_timeout_cancels_too(client: OpenAI) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.completions.create(
            model=MODEL, prompt="a", max_tokens=4000, timeout=0.5, extra_body={"ignore_eos": True}
        )


def test_the_helper_for_streams_gives_what_the_whole_answer_is(client: OpenAI) -> None:
    with client.chat.completions.stream(messages=FRANCE, stream_options={"include_usage": True}, **ASKED) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    whole = client.chat.completions.create(messages=FRANCE, **ASKED)
    assert text == final.choices[0].message.content == whole.choices[0].message.content == ANSWER
    assert final.usage is not None and whole.usage is not None
    assert (final.usage.prompt_tokens, final.usage.completion_tokens) == (37, 8)
    assert final.system_fingerprint == whole.system_fingerprint


def test_headers_and_ids_are_there(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        messages=FRANCE, extra_headers={"X-Request-Id": "mine"}, **ASKED
    )
    assert raw.headers["x-request-id"] == raw.request_id == "mine" and "x-octavo-seed" in raw.headers
    assert raw.parse().choices[0].message.content == ANSWER


def test_answers_are_read_into_classes_whole_and_streamed(client: OpenAI) -> None:
    whole = client.chat.completions.parse(messages=FRANCE, response_format=Capital, **ASKED)
    with client.chat.completions.stream(messages=FRANCE, response_format=Capital, **ASKED) as stream:
        streamed = stream.get_final_completion()
    parsed = whole.choices[0].message.parsed
    assert isinstance(parsed, Capital) and parsed.city == "Paris"
    assert streamed.choices[0].message.parsed == parsed


def test_tools_are_classes_and_their_calls_are_parsed(client: OpenAI) -> None:
    tools = [openai.pydantic_function_tool(GetWeather)]
    choice = client.chat.completions.parse(messages=OSLO, tools=tools, tool_choice="required", **ASKED).choices[0]
    [call] = choice.message.tool_calls or []
    assert choice.finish_reason == "tool_calls" and isinstance(call.function.parsed_arguments, GetWeather)
    said = choice.message.model_dump(exclude={"parsed"})
    result = {"role": "tool", "tool_call_id": call.id, "content": "21 C"}
    after = client.chat.completions.create(messages=[*OSLO, said, result], tools=tools, **ASKED)
    assert after.choices[0].message.role == "assistant"


def test_completions_stream_and_several_prompts_keep_their_order(client: OpenAI) -> None:
    prompts = ["The capital of France is", "The capital of Italy is"]
    fields: dict[str, Any] = {"model": MODEL, "prompt": prompts, "temperature": 0, "max_tokens": 2}
    texts = ["", ""]
    for chunk in client.completions.create(stream=True, **fields):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    whole = [choice.text for choice in client.completions.create(**fields).choices]
    assert texts == whole and whole[0].startswith(" Paris") and whole[1].startswith(" Rome")
