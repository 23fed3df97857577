"""What a script with llama-index's OpenAILike asks, and is answered, as JSON: llama_index_client.py URL MODEL"""

import asyncio
import json
import sys
from typing import Any, Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

URL, MODEL = sys.argv[1:]
ASKED: dict[str, Any] = {
    "model": MODEL,
    "api_base": f"{URL}/v1",
    "api_key": "none",
    "context_window": 4096,
    "temperature": 0,
    "max_retries": 0,
}
FRANCE = [ChatMessage(role="user", content="What is the capital of France?")]
OSLO = ChatMessage(role="user", content="How warm is it in Oslo?")


class Capital(BaseModel):
    city: str
    country: str


def get_weather(city: Literal["Rome", "Oslo"]) -> str:
    """The weather in a city."""
    return f"21 C and sunny in {city}"


def continued() -> dict[str, str]:
    model = OpenAILike(max_tokens=6, **ASKED)
    prompt = "The capital of France is"
    streamed = "".join(chunk.delta or "" for chunk in model.stream_complete(prompt))
    return {"whole": model.complete(prompt).text, "streamed": streamed}


def chatted(chat: OpenAILike) -> dict[str, Any]:
    whole, chunks = chat.chat(FRANCE), list(chat.stream_chat(FRANCE))
    return {
        "whole": whole.message.content,
        "usage": whole.raw.usage.model_dump(),
        "streamed": "".join(chunk.delta or "" for chunk in chunks),
        "completed": chat.complete(FRANCE[0].content or "").text,
    }


def called(chat: OpenAILike) -> dict[str, Any]:
    tool = FunctionTool.from_defaults(get_weather)
    whole = chat.chat_with_tools([tool], user_msg=OSLO, tool_required=True)
    *_, last = chat.stream_chat_with_tools([tool], user_msg=OSLO, tool_required=True)
    calls = [*chat.get_tool_calls_from_response(whole), *chat.get_tool_calls_from_response(last)]
    result = ChatMessage(role="tool", content="21 C", additional_kwargs={"tool_call_id": calls[0].tool_id})
    after = chat.chat_with_tools([tool], chat_history=[OSLO, whole.message, result])
    return {
        "calls": [{"name": call.tool_name, "args": call.tool_kwargs} for call in calls],
        "before": whole.raw.usage.prompt_tokens,
        "after": after.raw.usage.prompt_tokens,
    }


def shaped() -> list[dict[str, Any]]:
    """By a call, and by a schema."""
    ways = ({"is_function_calling_model": True}, {"should_use_structured_outputs": True})
    models = [OpenAILike(is_chat_model=True, max_tokens=80, **way, **ASKED) for way in ways]
    return [model.as_structured_llm(Capital).chat(FRANCE).raw.model_dump() for model in models]


async def together(chat: OpenAILike) -> list[str | None]:
    answers = await asyncio.gather(*(chat.achat(FRANCE) for _ in range(4)))
    chunks = [chunk async for chunk in await chat.astream_chat(FRANCE)]
    return [*(answer.message.content for answer in answers), "".join(chunk.delta or "" for chunk in chunks)]


if __name__ == "__main__":
    chat = OpenAILike(is_chat_model=True, is_function_calling_model=True, max_tokens=80, **ASKED)
    said = {
        "continued": continued(),
        "chatted": chatted(chat),
        "called": called(chat),
        "shaped": shaped(),
        "together": asyncio.run(together(chat)),
    }
    print(json.dumps(said))
