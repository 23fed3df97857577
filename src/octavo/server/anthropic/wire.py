"""How /v1/messages writes an answer down: a message of blocks, or the events that it comes in."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from pydantic_core import from_json

from octavo.server.anthropic.errors import error_body
from octavo.server.anthropic.schema import MessagesRequest
from octavo.server.openai.answer import Delta
from octavo.server.openai.blocks import Added, Block, Blocks, Change, Closed, Opened
from octavo.server.openai.chat import Reply
from octavo.server.openai.errors import ApiError
from octavo.server.openai.respond import Gathered
from octavo.server.openai.sse import named_event, one_line
from octavo.server.service import Service

_encode = msgspec.json.Encoder().encode


class MessageWire:
    """Writes the answer to one request of the Messages API (`respond.Wire`)."""

    keep_alive = named_event("ping", b'{"type":"ping"}')

    def __init__(self, service: Service, body: MessagesRequest, reply: Reply, request_id: str) -> None:
        self._job = reply.job
        self._request_id = request_id
        self._blocks = Blocks(reply.calling)
        self._head = {
            "id": f"msg_{body.request_id or reply.job.name}",
            "type": "message",
            "role": "assistant",
            "model": body.model or service.names[0],
        }
        most = reply.job.requests[0].params.max_tokens
        self._lowered = most is not None and most < body.max_tokens
        """Was the length lowered to the room that the context leaves?"""
        self._begun = False
        self._before = self._after = b""
        """What stands around the text in the events that add to the block that is open."""

    def whole(self, choices: Sequence[Gathered]) -> bytes:
        self._blocks.take_whole(choices[0])
        content = [_content(block) for block in self._blocks.all]
        return _encode({**self._head, "content": content, **self._ending(), "usage": self._usage()})

    def step(self, deltas: Sequence[Delta]) -> bytes:
        changes = [change for delta in deltas for change in self._blocks.take(delta)]
        return self._opening() + b"".join(map(self._change, changes))

    def end(self) -> bytes:
        ending = _event("message_delta", {"delta": self._ending(), "usage": self._usage()})
        return ending + _event("message_stop", {})

    def failed(self, error: ApiError) -> bytes:
        return named_event("error", error_body(error, self._request_id))

    def _opening(self) -> bytes:
        """What a stream begins with; nothing where it has begun."""
        if self._begun:
            return b""
        self._begun = True
        message = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": self._usage()}
        return _event("message_start", {"message": message})

    def _change(self, change: Change) -> bytes:
        match change:
            case Added(_, text):  # nearly all events: nothing but the text is encoded
                return self._before + one_line(_encode(text)) + self._after
            case Opened(block):
                self._before, self._after = _around(block)
                return _event("content_block_start", {"index": block.index, "content_block": _empty(block)})
            case Closed(block):
                return _event("content_block_stop", {"index": block.index})

    def _ending(self) -> dict[str, Any]:
        stop = self._blocks.stop
        return {"stop_reason": self._reason(), "stop_sequence": stop if isinstance(stop, str) else None}

    def _reason(self) -> str:
        if self._blocks.finish == "length":
            return "model_context_window_exceeded" if self._lowered else "max_tokens"
        if isinstance(self._blocks.stop, str):
            return "stop_sequence"
        return "tool_use" if self._blocks.called else "end_turn"

    def _usage(self) -> dict[str, Any]:
        """Tokens that were computed, and beside them those that were found in the cache."""
        usage = self._job.usage()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage["completion_tokens"],
            "service_tier": "standard",
        }


def _event(kind: str, fields: Mapping[str, Any]) -> bytes:
    return named_event(kind, _encode({"type": kind, **fields}))


def _around(block: Block) -> tuple[bytes, bytes]:
    """An event that adds to the block, but for its text."""
    kind, name = ("text_delta", "text") if block.name is None else ("input_json_delta", "partial_json")
    head = _encode({"type": "content_block_delta", "index": block.index, "delta": {"type": kind}})
    before = named_event("content_block_delta", head).removesuffix(b"}}\n\n")
    return before + b',"%b":' % name.encode(), b"}}\n\n"


def _content(block: Block) -> dict[str, Any]:
    """A block of a whole message."""
    if block.name is None:
        return {"type": "text", "text": block.text}
    return {**_empty(block), "input": _input(block.text)}


def _empty(block: Block) -> dict[str, Any]:
    """A block as it begins."""
    if block.name is None:
        return {"type": "text", "text": ""}
    return {"type": "tool_use", "id": block.id, "name": block.name, "input": {}}


def _input(arguments: str) -> dict[str, Any]:
    """Arguments as an object: of those that were cut as much as is complete, and nothing lost of what is no JSON."""
    try:
        value = from_json(arguments or "{}", allow_partial=True)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"INVALID_JSON": arguments}
