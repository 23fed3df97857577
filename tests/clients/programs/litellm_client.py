"""What a script with litellm asks, and what it is answered, as JSON: litellm_client.py URL MODEL"""

import asyncio
import json
import sys
from typing import Any

import litellm
from pydantic import BaseModel

URL, MODEL = sys.argv[1:]
ASKED: dict[str, Any] = {
    "model": f"hosted_vllm/{MODEL}",
    "api_base": f"{URL}/v1",
    "api_key": "none",
    "temperature": 0,
    "max_tokens": 60,
}
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
OSLO = [{"role": "user", "content": "How warm is it in Oslo?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class Capital(BaseModel):
    city: str
    country: str


def whole() -> dict[str, Any]:
    answer = litellm.completion(messages=FRANCE, **ASKED)
    return {"text": answer.choices[0].message.content, "usage": answer.usage.model_dump()}


def streamed() -> dict[str, Any]:
    chunks = list(litellm.completion(messages=FRANCE, stream=True, stream_options={"include_usage": True}, **ASKED))
    built = litellm.stream_chunk_builder(chunks, messages=FRANCE)
    ids = {chunk.id for chunk in chunks}
    return {"text": built.choices[0].message.content, "usage": built.usage.model_dump(), "ids": len(ids)}


async def together() -> list[str]:
    answers = await asyncio.gather(*(litellm.acompletion(messages=FRANCE, **ASKED) for _ in range(4)))
    return [answer.choices[0].message.content for answer in answers]


def embedded() -> list[list[float]]:
    asked = {name: ASKED[name] for name in ("model", "api_base", "api_key")}
    return [each["embedding"] for each in litellm.embedding(input=["France", "Oslo", "France"], **asked).data]


def continued() -> str:
    asked = {**ASKED, "model": f"text-completion-openai/{MODEL}", "max_tokens": 6}
    return litellm.text_completion(prompt="The capital of France is", **asked).choices[0].text


def called(**fields: Any) -> dict[str, Any]:
    choice = litellm.completion(messages=OSLO, tools=[WEATHER], **fields, **ASKED).choices[0]
    call = choice.message.tool_calls[0]
    return {"name": call.function.name, "arguments": json.loads(call.function.arguments), "end": choice.finish_reason}


def called_in_a_stream() -> dict[str, Any]:
    chunks = list(litellm.completion(messages=OSLO, tools=[WEATHER], tool_choice="required", stream=True, **ASKED))
    choice = litellm.stream_chunk_builder(chunks, messages=OSLO).choices[0]
    call = choice.message.tool_calls[0]
    return {"name": call.function.name, "arguments": json.loads(call.function.arguments), "end": choice.finish_reason}


def in_other_words() -> list[str]:
    """By /v1/responses, and by Anthropic's /v1/messages whole and streamed."""
    responses = {**ASKED, "max_output_tokens": ASKED["max_tokens"]}
    del responses["max_tokens"]
    answer = litellm.responses(input=FRANCE[0]["content"], **{**responses, "model": f"openai/{MODEL}"})
    asked = {**ASKED, "model": f"anthropic/{MODEL}", "api_base": URL}
    chunks = litellm.completion(messages=FRANCE, stream=True, **asked)
    return [
        answer.output[0].content[0].text,
        litellm.completion(messages=FRANCE, **asked).choices[0].message.content,
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
    ]


def shaped() -> dict[str, Any]:
    answer = litellm.completion(messages=FRANCE, response_format=Capital, **ASKED)
    return Capital.model_validate_json(answer.choices[0].message.content).model_dump()


def refused(messages: list[dict[str, str]], **fields: Any) -> str:
    try:
        litellm.completion(messages=messages, **{**ASKED, **fields})
    except litellm.BadRequestError as error:
        return type(error).__name__
    return "nothing"


if __name__ == "__main__":
    litellm.suppress_debug_info = True
    said = {
        "whole": whole(),
        "streamed": streamed(),
        "together": asyncio.run(together()),
        "continued": continued(),
        "called": [
            called(tool_choice="required"),
            called(tool_choice={"type": "function", "function": {"name": "get_weather"}}),
            called_in_a_stream(),
        ],
        "in_other_words": in_other_words(),
        "embedded": embedded(),
        "shaped": shaped(),
        "refused": [
            refused(FRANCE, temperature=-1),
            refused(FRANCE * 1000),
            refused(FRANCE * 1000, model=f"anthropic/{MODEL}", api_base=URL),
        ],
    }
    print(json.dumps(said))
