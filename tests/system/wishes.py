"""Wishes: random requests to all endpoints, sound, strange and spoiled."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.server.effects import ABSENT
from tests.server.endpoints import ENDPOINTS

Fields = dict[str, Any]
MOST_TOKENS = 24

WORDS = ("the sea", "ships", "night wind", "harbour", "seven", "a red letter", "of where", "Żółw", "🐢", "42", "(x)")
STEMS = ["You are a patient assistant who knows all about ships. " * count for count in (1, 2, 4)]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Wish:
    """A request: its route, as metrics call it, and its path where that is another one."""

    route: str
    body: bytes
    method: str = "POST"
    at: str = ""

    @property
    def path(self) -> str:
        return self.at or self.route


def text(rng: random.Random) -> str:
    stem = rng.choice(["", "", *STEMS])
    return stem + " ".join(rng.choices(WORDS, k=rng.randint(1, 10)))


def careful_wish(rng: random.Random) -> Wish:
    """A sound request that ends by tokens alone, of which the client is told what it took."""
    route, made = rng.choice(_CAREFUL)
    return Wish(route, json.dumps(made(rng)).encode())


def _sampling(rng: random.Random) -> Fields:
    kinds: tuple[Fields, ...] = (
        {"temperature": 0},
        {"temperature": 1.0, "seed": rng.randrange(2**32)},
        {"temperature": 1.0, "top_p": 0.9, "top_k": 40},
        {"temperature": 0.7, "min_p": 0.05, "typical_p": 0.9},
    )
    return rng.choice(kinds)


def _streamed(rng: random.Random, fields: Fields) -> Fields:
    return {**fields, "stream": True, "stream_options": {"include_usage": True}} if rng.random() < 0.5 else fields


def _completion(rng: random.Random) -> Fields:
    fields = {"prompt": text(rng), "max_tokens": rng.randint(1, MOST_TOKENS), "n": rng.choice([1, 1, 1, 2, 3])}
    more: tuple[Fields, ...] = (
        {},
        {"logprobs": 3},
        {"echo": True},
        {"ignore_eos": True},
        {"repetition_penalty": 1.2, "presence_penalty": 0.5},
        {"structured_outputs": {"regex": "[a-z]{2,6} [0-9]{1,3}"}},
        {"priority": 0, "cache_salt": rng.choice("abc")},
    )
    return _streamed(rng, {**fields, **_sampling(rng), **rng.choice(more)})


def _messages(rng: random.Random) -> list[Fields]:
    system = [{"role": "system", "content": rng.choice(STEMS)}] if rng.random() < 0.5 else []
    said = [{"role": "user", "content": text(rng)}, {"role": "assistant", "content": text(rng)}]
    return [*system, *said[: 2 * rng.randint(0, 1)], {"role": "user", "content": text(rng)}]


def _chat(rng: random.Random) -> Fields:
    fields = {"messages": _messages(rng), "max_tokens": rng.randint(1, MOST_TOKENS), "n": rng.choice([1, 1, 2])}
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    more: tuple[Fields, ...] = (
        {},
        {"logprobs": True, "top_logprobs": 2},
        {"response_format": schema},
        {"response_format": {"type": "json_object"}},
        {
            "tools": [{"type": "function", "function": {"name": "find", "parameters": SCHEMA}}],
            "tool_choice": "required",
        },
    )
    return _streamed(rng, {**fields, **_sampling(rng), **rng.choice(more)})


def _responses(rng: random.Random) -> Fields:
    fields: Fields = {"input": text(rng), "max_output_tokens": rng.randint(1, MOST_TOKENS)}
    more: tuple[Fields, ...] = (
        {"stream": True},
        {"instructions": rng.choice(STEMS)},
        {"stream": True, "text": {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA}}},
    )
    return {**fields, **_sampling(rng), **rng.choice(more)}


def _anthropic(rng: random.Random) -> Fields:
    fields: Fields = {"messages": [{"role": "user", "content": text(rng)}], "max_tokens": rng.randint(1, MOST_TOKENS)}
    more: tuple[Fields, ...] = (
        {"stream": True},
        {"system": rng.choice(STEMS), "temperature": 0},
        {"stream": True, "tools": [{"name": "find", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}},
    )
    return {**fields, **rng.choice(more)}


def _embeddings(rng: random.Random) -> Fields:
    return {"input": text(rng), "encoding_format": rng.choice(["float", "base64"])}


_CAREFUL: list[tuple[str, Callable[[random.Random], Fields]]] = [
    ("/v1/completions", _completion),
    ("/v1/completions", _completion),
    ("/v1/chat/completions", _chat),
    ("/v1/chat/completions", _chat),
    ("/v1/responses", _responses),
    ("/v1/messages", _anthropic),
    ("/v1/embeddings", _embeddings),
]

_GENERATE = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings")
_LENGTHS = {"/v1/responses": "max_output_tokens"}
TABLE = [
    (endpoint.path, endpoint.request(effect, path.partition(".")[0].removesuffix("[]"), value))
    for endpoint in ENDPOINTS
    for path, effect in endpoint.effects.items()
    for value in (effect.value, effect.other)
    if value is not ABSENT and endpoint.path != "/octavo/v1/pins"
]
"""A request for each value of each field that any endpoint has."""


def wild_wish(rng: random.Random, *, generates: bool = False) -> Wish:
    """One of the table. `generates`: to an endpoint that does."""
    route, fields = rng.choice(_GENERATING if generates else TABLE)
    if route in _GENERATE[:4]:
        name = _LENGTHS.get(route, "max_tokens")
        fields = {name: MOST_TOKENS, **fields}
    if rng.random() < 0.3 and route in _GENERATE[:4]:
        fields = {**fields, "stop": ["e", "the"]} if route != "/v1/messages" else {**fields, "stop_sequences": ["e"]}
    return Wish(route, json.dumps(fields).encode())


_GENERATING = [each for each in TABLE if each[0] in _GENERATE]
ODD: list[Any] = [None, True, -1, 0, 1e308, 10**30, "", "\ud800", "x" * 300, [], {}, [[]], {"a": None}, ["\0"]]


def spoiled(rng: random.Random, body: bytes) -> bytes:
    """The same, with something in it that is wrong: a value, a name, or bytes."""
    kind = rng.randrange(4)
    if kind == 0:
        at = rng.randrange(len(body))
        return body[:at] + rng.randbytes(rng.randint(1, 4)) + body[at + 1 :]
    if kind == 1:
        return body[: rng.randrange(len(body))]
    fields = json.loads(body)
    name = rng.choice(list(fields))
    if kind == 2 and name not in ("max_tokens", "max_output_tokens"):
        fields[name] = rng.choice(ODD)
    else:
        fields[rng.choice(["tempreature", "n", "best_of", "", "stop", "tools"])] = rng.choice(ODD)
    return json.dumps(fields).encode()
