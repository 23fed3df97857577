"""A stream and the whole answer of the same request are one: text, logprobs, ids, usage. And how a stream is framed."""

import asyncio
import json
from itertools import cycle
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.server.exchange import STRAIGHT
from tests.server.site import Site, Streamed, parse_events

USAGE = {"stream_options": {"include_usage": True}}
fields = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 24), "temperature": st.sampled_from([0, 0.8, 1.5]), "seed": st.integers(0, 9)},
    optional={
        "n": st.integers(1, 3),
        "stop": st.lists(st.sampled_from(["e", "P", "\n", "th", "a ", "\ufffd", "an in"]), min_size=1, max_size=3),
        "include_stop_str_in_output": st.booleans(),
        "stop_token_ids": st.lists(st.integers(3, 287), max_size=20),
        "skip_special_tokens": st.booleans(),
        "ignore_eos": st.booleans(),
        "min_tokens": st.just(1),
        "logit_bias": st.just({"2": 5, "260": 6, "100": 5}),
        "return_token_ids": st.booleans(),
        "frequency_penalty": st.just(1.0),
    },
)


def merged(first: Any, second: Any) -> Any:
    """Legacy logprobs of two chunks."""
    return second if first is None else {key: first[key] + second[key] for key in first}


def ids_of(choices: list[dict[str, Any]]) -> list[int]:
    return [token for choice in choices for token in choice.get("token_ids", ())]


@given(fields, st.none() | st.integers(0, 3), st.booleans(), st.sampled_from(["the", ["an in", "e"], [[5, 6]]]))
@settings(deadline=None)
def test_completions(site: Site, fields: dict[str, Any], logprobs: int | None, echo: bool, prompt: Any) -> None:
    body = {**fields, "logprobs": logprobs, "echo": echo}
    whole = site.complete(prompt, **body).json()
    streamed = site.stream(site.complete(prompt, stream=True, **body, **USAGE))
    check_frame(streamed, "text_completion", len(whole["choices"]))
    for choice in whole["choices"]:
        index = choice["index"]
        chunks = streamed.choices(index)
        assert streamed.text(index) == choice["text"]
        assert streamed.finish(index) == [(choice["finish_reason"], choice["stop_reason"])]
        assert ids_of(chunks) == ids_of([choice])
        joined = None
        for chunk in chunks:
            if logprobs is not None:
                assert spelled(chunk) == chunk["text"] or chunk["finish_reason"] or odd(chunk["text"])
                joined = merged(joined, chunk["logprobs"])
        assert joined == choice["logprobs"]
    assert without_cache(streamed.chunks[-1]["usage"]) == without_cache(whole["usage"])


@given(fields, st.none() | st.integers(0, 3))
@settings(deadline=None)
def test_chat(site: Site, fields: dict[str, Any], top: int | None) -> None:
    body = {**fields, "logprobs": top is not None, "top_logprobs": top}
    whole = site.chat("the", **body).json()
    streamed = site.stream(site.chat("the", stream=True, **body, **USAGE))
    check_frame(streamed, "chat.completion.chunk", len(whole["choices"]))
    for choice in whole["choices"]:
        index = choice["index"]
        chunks = streamed.choices(index)
        assert streamed.text(index) == choice["message"]["content"]
        assert streamed.finish(index) == [(choice["finish_reason"], choice["stop_reason"])]
        assert ids_of(chunks) == ids_of([choice])
        assert [chunk["delta"].get("role") for chunk in chunks] == ["assistant", *[None] * (len(chunks) - 1)]
        if top is not None:
            entries = [entry for chunk in chunks for entry in chunk["logprobs"]["content"]]
            assert entries == choice["logprobs"]["content"]
    assert without_cache(streamed.chunks[-1]["usage"]) == without_cache(whole["usage"])


def check_frame(streamed: Streamed, kind: str, num_choices: int) -> None:
    assert streamed.status == 200 and streamed.done and not streamed.errors, streamed.body
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in streamed.chunks}) == 1
    assert streamed.chunks[0]["object"] == kind
    *with_choices, last = streamed.chunks
    assert last["choices"] == [] and all(
        len(chunk["choices"]) == 1 and chunk["usage"] is None for chunk in with_choices
    )
    for index in range(num_choices):
        finishes = [choice["finish_reason"] for choice in streamed.choices(index)]
        assert finishes[-1] is not None and not any(finishes[:-1])


def spelled(chunk: dict[str, Any]) -> str:
    return "".join(chunk["logprobs"]["tokens"])


def odd(text: str) -> bool:
    """Bytes that are no text by themselves have names of their own in logprobs; control tokens may be hidden."""
    return not text.isascii() or text == ""


def without_cache(usage: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in usage.items() if name != "prompt_tokens_details"}


def test_the_usage_comes_only_where_it_was_asked_for(site: Site) -> None:
    plain = site.stream(site.complete("the", stream=True, max_tokens=3))
    assert plain.done and all(chunk["choices"] and "usage" not in chunk for chunk in plain.chunks)
    options = {"include_usage": True, "continuous_usage_stats": True}
    counted = site.stream(site.complete("the", stream=True, max_tokens=3, stream_options=options))
    assert [chunk["usage"]["completion_tokens"] for chunk in counted.chunks] == [1, 2, 3, 3]


def test_one_event_for_each_step(site: Site) -> None:
    """Also where a stop string holds the text back."""
    plain = site.stream(site.complete("the", stream=True, max_tokens=9, ignore_eos=True, n=2))
    assert [len(plain.choices(index)) for index in (0, 1)] == [9, 9]
    held = site.stream(
        site.complete("the", stream=True, max_tokens=9, ignore_eos=True, stop=plain.text()[:8] + "never")
    )
    assert len(held.choices()) == 9 and held.text() == plain.text()


def test_a_stream_is_not_to_be_stored_or_buffered(site: Site) -> None:
    headers = site.complete("the", stream=True, max_tokens=1).headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache" and headers["x-accel-buffering"] == "no"


def test_cached_tokens_are_always_a_number(site: Site) -> None:
    prompt = "cached before " * 8

    def cached(**fields: Any) -> Any:
        return site.complete(prompt, max_tokens=1, **fields).json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached(cache_salt="once") == 0
    assert cached(cache_salt="once") >= 48
    assert cached(cache_salt="once", n=3) >= 48


@pytest.mark.parametrize("echo", [False, True])
def test_legacy_logprobs_hold_together(site: Site, echo: bool) -> None:
    choice = site.complete("the an", max_tokens=8, logprobs=2, echo=echo, ignore_eos=True).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert len({len(column) for column in logprobs.values()}) == 1
    starts = [choice["text"][offset:] for offset in logprobs["text_offset"]]
    for start, token in zip(starts, logprobs["tokens"], strict=True):
        assert start.startswith(token) or token.startswith("bytes:")
    pairs = list(zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True))
    generated = pairs[-8:]
    assert all(len(top) == 2 and value == max(top.values()) for value, top in generated)
    if echo:
        assert pairs[0] == (None, None)
        assert all(value in top.values() for value, top in pairs[1:])


def test_prompt_logprobs(site: Site) -> None:
    prompt = site.tokenizer.encode("the an in")
    whole = site.complete([prompt], prompt_logprobs=2, max_tokens=1).json()["choices"][0]["prompt_logprobs"]
    streamed = site.stream(site.complete([prompt], prompt_logprobs=2, max_tokens=1, stream=True))
    chat = site.chat("the", prompt_logprobs=1, max_tokens=1, return_token_ids=True).json()
    assert streamed.choices()[0]["prompt_logprobs"] == whole
    assert whole[0] is None and len(whole) == len(prompt)
    for token, entry in zip(prompt[1:], whole[1:], strict=True):
        own = entry[str(token)]
        assert own["decoded_token"] == site.tokenizer.token_text(token)
        assert own["rank"] >= 1 and len(entry) == (2 if own["rank"] <= 2 else 3)
    assert len(chat["prompt_logprobs"]) == len(chat["prompt_token_ids"]) == chat["usage"]["prompt_tokens"]


def test_an_echo_alone_can_be_streamed(site: Site) -> None:
    streamed = site.stream(site.complete("the an", echo=True, max_tokens=0, logprobs=0, stream=True, n=2))
    assert streamed.done
    for index in (0, 1):
        (chunk,) = streamed.choices(index)
        assert (chunk["text"], chunk["finish_reason"]) == ("the an", "length")
        assert "".join(chunk["logprobs"]["tokens"]) == "the an"


class Way:
    """How an answer leaves the app when it is called as ASGI says, and a way past it that is free as the story says."""

    def __init__(self, body: dict[str, Any], story: list[bool]) -> None:
        self._requests = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
        self._story = cycle(story)
        self.data = b""
        self.num_past = 0

    @property
    def free(self) -> bool:
        return bool(self.data) and next(self._story)

    def write(self, data: bytes) -> None:
        self.data += data
        self.num_past += 1

    async def receive(self) -> dict[str, Any]:
        if not self._requests:
            await asyncio.get_running_loop().create_future()  # a client that stays
        return self._requests.pop()

    async def send(self, message: dict[str, Any]) -> None:
        await asyncio.sleep(0)  # as where a client is slow: steps that come meanwhile must wait
        self.data += message.get("body", b"")


@given(fields, st.lists(st.booleans(), min_size=1, max_size=8), st.sampled_from(["the", ["an in", "e"]]))
@settings(deadline=None, max_examples=30)
def test_a_stream_is_the_same_whichever_way_its_steps_take(
    site: Site, fields: dict[str, Any], story: list[bool], prompt: Any
) -> None:
    body = {"prompt": prompt, "temperature": 0, "stream": True, **fields, **USAGE}
    way = Way(body, story)
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "headers": [(b"content-type", b"application/json")],
        "extensions": {STRAIGHT: {"body": way}},
    }
    site.run(site.app(scope, way.receive, way.send))
    past = parse_events(200, httpx.Headers({"content-type": "text/event-stream"}), way.data.decode())
    plain = site.stream(site.post("/v1/completions", body))
    num_choices = fields.get("n", 1) * (len(prompt) if isinstance(prompt, list) else 1)
    check_frame(past, "text_completion", num_choices)
    assert way.num_past == 0 or any(story)
    for index in range(num_choices):
        assert (past.text(index), past.finish(index)) == (plain.text(index), plain.finish(index))
    assert without_cache(past.chunks[-1]["usage"]) == without_cache(plain.chunks[-1]["usage"])
