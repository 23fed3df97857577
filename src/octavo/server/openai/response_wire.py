"""How /v1/responses writes an answer down: a Response with items, or the typed events that it comes in."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from octavo.core.plan import ScoredToken
from octavo.server.openai.answer import Delta
from octavo.server.openai.blocks import Added, Block, Blocks, Change, Closed, Opened
from octavo.server.openai.chat import Reply
from octavo.server.openai.errors import ApiError, printable
from octavo.server.openai.logprobs import LogprobWriter
from octavo.server.openai.respond import Gathered
from octavo.server.openai.response_schema import LOGPROBS, FunctionTool, ResponsesRequest
from octavo.server.openai.sse import KEEP_ALIVE, named_event, one_line
from octavo.server.service import Service

_encode = msgspec.json.Encoder().encode


class ResponseWire:
    """Writes the answer to one request of the Responses API (`respond.Wire`)."""

    keep_alive = KEEP_ALIVE

    def __init__(self, service: Service, body: ResponsesRequest, reply: Reply) -> None:
        self._job = reply.job
        self._blocks = Blocks(reply.calling)
        self._key = body.request_id or reply.job.name
        self._asked = _asked(body, reply)
        self._model = body.model or service.names[0]
        self._created = int(time.time())
        self._logprobs = LogprobWriter(service.tokenizer) if LOGPROBS in (body.include or ()) else None
        self._num_events = 0
        self._delta = b""
        """What stands before number and text in the events that add to the block that is open."""

    def whole(self, choices: Sequence[Gathered]) -> bytes:
        self._blocks.take_whole(choices[0])
        return _encode(self._ended())

    def step(self, deltas: Sequence[Delta]) -> bytes:
        changes = [change for delta in deltas for change in self._blocks.take(delta)]
        return self._opening() + b"".join(map(self._change, changes))

    def end(self) -> bytes:
        response = self._ended()
        return self._event(f"response.{response['status']}", {"response": response})

    def failed(self, error: ApiError) -> bytes:
        told = {"code": _failure(error), "message": printable(error.message), "type": error.kind, "param": error.param}
        response = self._response("failed") | {"error": told, "usage": self._usage()}
        for item in response["output"]:
            if item["status"] == "in_progress":
                item["status"] = "incomplete"
        return self._opening() + self._event("response.failed", {"response": response})

    def _opening(self) -> bytes:
        """What a stream begins with; nothing where it has begun."""
        if self._num_events:
            return b""
        response = {"response": self._response("in_progress") | {"output": []}}
        return self._event("response.created", response) + self._event("response.in_progress", response)

    def _change(self, change: Change) -> bytes:
        match change:
            case Added(block, text, spelled):
                return self._added(block, text, spelled)
            case Opened(block):
                return self._opened(block)
            case Closed(block):
                return self._closed(block)

    def _added(self, block: Block, text: str, spelled: Sequence[ScoredToken]) -> bytes:
        """Nearly all events: of most nothing but the text is encoded."""
        number, self._num_events = self._num_events, self._num_events + 1
        logprobs = b""
        if block.name is None:
            logprobs = b',"logprobs":' + (one_line(_encode(self._scored(spelled))) if self._logprobs else b"[]")
        return b'%b%d,"delta":%b%b}\n\n' % (self._delta, number, one_line(_encode(text)), logprobs)

    def _opened(self, block: Block) -> bytes:
        where, item = self._where(block), self._item(block) | {"status": "in_progress"}
        added = {
            "output_index": block.index,
            "item": item | ({"content": []} if block.name is None else {"arguments": ""}),
        }
        events = self._event("response.output_item.added", added)
        if block.name is None:
            part = _text_part("", [])
            events += self._event("response.content_part.added", {**where, "part": part})
        self._delta = _delta_head(block, where)
        return events

    def _closed(self, block: Block) -> bytes:
        where, item = self._where(block), self._item(block)
        if block.name is None:
            [part] = item["content"]
            done = {**where, "text": part["text"], "logprobs": part["logprobs"]}
            events = self._event("response.output_text.done", done)
            events += self._event("response.content_part.done", {**where, "part": part})
        else:
            done = {**where, "name": block.name, "arguments": block.text}
            events = self._event("response.function_call_arguments.done", done)
        return events + self._event("response.output_item.done", {"output_index": block.index, "item": item})

    def _event(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        number, self._num_events = self._num_events, self._num_events + 1
        return named_event(kind, _encode({"type": kind, "sequence_number": number, **fields}))

    def _where(self, block: Block) -> dict[str, Any]:
        where = {"item_id": self._item_id(block), "output_index": block.index}
        return where if block.name is not None else {**where, "content_index": 0}

    def _item_id(self, block: Block) -> str:
        return f"{'msg' if block.name is None else 'fc'}_{self._key}_{block.index}"

    def _item(self, block: Block) -> dict[str, Any]:
        item = {"id": self._item_id(block), "status": block.status}
        if block.name is not None:
            call = {"call_id": block.id, "name": block.name, "arguments": block.text}
            return {"type": "function_call", **item, **call}
        part = _text_part(block.text, self._scored(block.spelled))
        return {"type": "message", **item, "role": "assistant", "content": [part]}

    def _scored(self, spelled: Sequence[ScoredToken]) -> list[dict[str, Any]]:
        return [] if self._logprobs is None else self._logprobs.chat(spelled)["content"]

    def _ended(self) -> dict[str, Any]:
        usage = {"usage": self._usage()}
        if self._blocks.finish == "length":
            return self._response("incomplete") | usage | {"incomplete_details": {"reason": "max_output_tokens"}}
        return self._response("completed") | usage | {"completed_at": int(time.time())}

    def _response(self, status: str) -> dict[str, Any]:
        return {
            "id": f"resp_{self._key}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "model": self._model,
            "output": [self._item(block) for block in self._blocks.all],
            "usage": None,
            **self._asked,
        }

    def _usage(self) -> dict[str, Any]:
        usage = self._job.usage()
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }


def _text_part(text: str, logprobs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _delta_head(block: Block, where: Mapping[str, Any]) -> bytes:
    kind = "response.output_text.delta" if block.name is None else "response.function_call_arguments.delta"
    fields = _encode({"type": kind, **where})
    return named_event(kind, fields).removesuffix(b"}\n\n") + b',"sequence_number":'


def _failure(error: ApiError) -> str:
    """The nearest of the codes that a Response can have."""
    if error.status >= 500:
        return "server_error"
    return "rate_limit_exceeded" if error.status == 429 else "invalid_prompt"


def _asked(body: ResponsesRequest, reply: Reply) -> dict[str, Any]:
    """What a Response says of its request: values as they were used, and what clients want to have back."""
    params = reply.job.requests[0].params
    format_ = body.text.format if body.text is not None else None
    choice = body.tool_choice or "auto"
    return {
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": False,
        "temperature": params.temperature,
        "text": {
            "format": {"type": "text"} if format_ is None else format_.model_dump(by_alias=True, exclude_none=True)
        },
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
        "tools": [_tool(tool) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": "disabled",
        "user": body.user,
    }


def _tool(tool: FunctionTool) -> dict[str, Any]:
    return {**tool.model_dump(include={"type", "name", "description", "parameters"}), "strict": bool(tool.strict)}
