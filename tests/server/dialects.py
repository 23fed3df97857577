"""The two protocols beside chat, as strict clients read them: each event in its place, and the answer put together."""

import json
from collections.abc import Iterable
from typing import Any

import jiter

Json = dict[str, Any]


def events_of(text: str) -> list[Json]:
    """The events of a stream: all are named, and what they are called is what they say they are."""
    events: list[Json] = []
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    for block in blocks:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


class _Events:
    """Events, of which the next must be one that is expected."""

    def __init__(self, events: Iterable[Json]) -> None:
        self._events = [event for event in events if event["type"] != "ping"]
        self._next = 0

    @property
    def kind(self) -> str:
        return self._events[self._next]["type"] if self._next < len(self._events) else ""

    def take(self, kind: str, **fields: Any) -> Json:
        event = self._events[self._next]
        self._next += 1
        assert event["type"] == kind, f"{kind} should come, and it is {event}"
        assert fields.items() <= event.items()
        return event


def response_of(events: list[Json]) -> Json:
    """The response that a stream ends with, which is what its events made. Fails where one is out of place."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    rest = _Events(events)
    created = rest.take("response.created")["response"]
    assert rest.take("response.in_progress")["response"] == created
    assert created["status"] == "in_progress" and created["output"] == [] and created["usage"] is None
    output: list[Json] = []
    while rest.kind == "response.output_item.added":
        output.append(_item_of(rest, len(output)))
    ended = rest.take(f"response.{events[-1]['response']['status']}")["response"]
    assert rest.kind == "" and ended["output"] == output
    same = created.keys() - {"status", "output", "usage", "completed_at", "incomplete_details"}
    assert all(ended[name] == created[name] for name in same)
    return ended


def _item_of(rest: _Events, index: int) -> Json:
    added = rest.take("response.output_item.added", output_index=index)["item"]
    assert added["status"] == "in_progress"
    where: Json = {"item_id": added["id"], "output_index": index}
    if added["type"] == "message":
        assert added["content"] == []
        text = _text_of(rest, {**where, "content_index": 0})
        made = {**added, "content": [text]}
    else:
        made = {**added, "arguments": _arguments_of(rest, where)}
    item = rest.take("response.output_item.done", output_index=index)["item"]
    assert item["status"] in ("completed", "incomplete") and {**made, "status": item["status"]} == item
    return item


def _text_of(rest: _Events, where: Json) -> Json:
    part = rest.take("response.content_part.added", **where)["part"]
    while rest.kind == "response.output_text.delta":
        delta = rest.take("response.output_text.delta", **where)
        part["text"] += delta["delta"]
        part["logprobs"] += delta["logprobs"]
    rest.take("response.output_text.done", **where, text=part["text"], logprobs=part["logprobs"])
    rest.take("response.content_part.done", **where, part=part)
    return part


def _arguments_of(rest: _Events, where: Json) -> str:
    arguments = ""
    while rest.kind == "response.function_call_arguments.delta":
        arguments += rest.take("response.function_call_arguments.delta", **where)["delta"]
    rest.take("response.function_call_arguments.done", **where, arguments=arguments)
    return arguments


def message_of(events: list[Json]) -> Json:
    """The message that the events of a stream make. Fails where one is out of place."""
    rest = _Events(events)
    message = rest.take("message_start")["message"]
    assert message["content"] == [] and message["stop_reason"] is None
    while rest.kind == "content_block_start":
        message["content"].append(_block_of(rest, len(message["content"])))
    ending = rest.take("message_delta")
    rest.take("message_stop")
    assert rest.kind == ""
    return {**message, **ending["delta"], "usage": {**message["usage"], **ending["usage"]}}


def _block_of(rest: _Events, index: int) -> Json:
    block = rest.take("content_block_start", index=index)["content_block"]
    kind, name = ("text_delta", "text") if block["type"] == "text" else ("input_json_delta", "partial_json")
    text = ""
    while rest.kind == "content_block_delta":
        delta = rest.take("content_block_delta", index=index)["delta"]
        assert delta.keys() == {"type", name} and delta["type"] == kind
        text += delta[name]
    rest.take("content_block_stop", index=index)
    return {**block, "text": text} if block["type"] == "text" else {**block, "input": input_of(text)}


def input_of(text: str) -> Any:
    """A tool's input, as far as it came, as Anthropic's own client reads it."""
    try:
        value = jiter.from_json(text.encode() or b"{}", partial_mode=True)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"INVALID_JSON": text}
