"""What a script with langchain-openai asks, and what it is answered, as JSON: langchain_client.py URL MODEL"""

import asyncio
import json
import sys
from collections.abc import Iterable
from typing import Any, Literal

import openai
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, ConfigDict

URL, MODEL = sys.argv[1:]
ASKED: dict[str, Any] = {
    "base_url": f"{URL}/v1",
    "api_key": "none",
    "model": MODEL,
    "temperature": 0,
    "max_retries": 0,
}
FRANCE = "What is the capital of France?"
OSLO = "How warm is it in Oslo?"


class get_weather(BaseModel):
    """The weather in a city."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Rome", "Oslo"]


class Capital(BaseModel):
    """The capital of a country."""

    city: str
    country: str


def joined(chunks: Iterable[Any]) -> AIMessageChunk:
    first, *rest = chunks
    for chunk in rest:
        first += chunk
    return first


def words(message: Any) -> dict[str, Any]:
    return {"text": message.content, "usage": message.usage_metadata, "end": message.response_metadata["finish_reason"]}


def called(chat: ChatOpenAI) -> dict[str, Any]:
    whole = chat.bind_tools([get_weather], tool_choice="any").invoke(OSLO)
    named = joined(chat.bind_tools([get_weather], tool_choice="get_weather").stream(OSLO))
    result = ToolMessage("21 C and sunny", tool_call_id=named.tool_calls[0]["id"])
    after = chat.bind_tools([get_weather]).invoke([HumanMessage(OSLO), named, result])
    calls = [{"name": call["name"], "args": call["args"]} for call in (*whole.tool_calls, *named.tool_calls)]
    return {
        "calls": calls,
        "after": after.usage_metadata["input_tokens"],
        "before": whole.usage_metadata["input_tokens"],
    }


def shaped(chat: ChatOpenAI) -> list[dict[str, Any]]:
    asked = f"{FRANCE} Answer in JSON with the keys city and country."
    ways = ("json_schema", "function_calling", "json_mode")
    return [chat.with_structured_output(Capital, method=way).invoke(asked).model_dump() for way in ways]


async def together(chat: ChatOpenAI) -> dict[str, Any]:
    answers = await chat.abatch([FRANCE] * 4)
    return {"batch": [answer.content for answer in answers], "chunks": [c.content async for c in chat.astream(FRANCE)]}


def continued() -> dict[str, Any]:
    model = OpenAI(max_tokens=6, **ASKED)
    prompt = "The capital of France is"
    return {"whole": model.invoke(prompt), "streamed": "".join(model.stream(prompt))}


def embedded() -> dict[str, Any]:
    """Texts are sent as they are: its own tokenizer is another model's."""
    asked = {name: ASKED[name] for name in ("base_url", "api_key", "model", "max_retries")}
    model = OpenAIEmbeddings(check_embedding_ctx_length=False, **asked)
    return {"documents": model.embed_documents([FRANCE, OSLO, FRANCE]), "query": model.embed_query(OSLO)}


def in_other_words() -> dict[str, Any]:
    """By /v1/responses."""
    chat = ChatOpenAI(use_responses_api=True, max_tokens=80, **ASKED)
    whole, streamed = chat.invoke(FRANCE), joined(chat.stream(FRANCE))
    return {
        "texts": [whole.text, streamed.text],
        "usage": [whole.usage_metadata, streamed.usage_metadata],
        "shaped": chat.with_structured_output(Capital).invoke(FRANCE).model_dump(),
        "called": chat.bind_tools([get_weather], tool_choice="any").invoke(OSLO).tool_calls[0]["name"],
    }


def refused(chat: ChatOpenAI) -> list[str]:
    try:
        chat.invoke(FRANCE * 1000)
    except openai.BadRequestError as error:
        return [kind.__name__ for kind in type(error).__mro__]
    return []


if __name__ == "__main__":
    chat = ChatOpenAI(max_tokens=80, **ASKED)
    first_logprob = chat.bind(logprobs=True, top_logprobs=2).invoke(FRANCE).response_metadata["logprobs"]["content"][0]
    said = {
        "whole": words(chat.invoke(FRANCE)),
        "streamed": words(joined(chat.stream(FRANCE, stream_usage=True))),
        "together": asyncio.run(together(chat)),
        "continued": continued(),
        "called": called(chat),
        "shaped": shaped(chat),
        "first_logprob": first_logprob,
        "responses": in_other_words(),
        "embedded": embedded(),
        "refused": refused(chat),
    }
    print(json.dumps(said))
