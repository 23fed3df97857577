"""POST /v1/chat/completions"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from octavo.server.exchange import Exchange
from octavo.server.openai.answer import Delta
from octavo.server.openai.calling import Calling, CallWriter, asked_calls, shown_tools
from octavo.server.openai.chunks import ChunkWire
from octavo.server.openai.errors import ApiError, invalid
from octavo.server.openai.intake import (
    check_choices,
    check_count,
    check_stream,
    most_tokens,
    read,
    report_unknown,
    truncated,
)
from octavo.server.openai.job import Job, make_job
from octavo.server.openai.logprobs import LogprobWriter
from octavo.server.openai.messages import Message, checked, unread
from octavo.server.openai.params import Scores, asked_length
from octavo.server.openai.prompts import Prompt
from octavo.server.openai.respond import Gathered, respond
from octavo.server.openai.schema import ChatRequest, TextRequest
from octavo.server.openai.structured import asked_structure
from octavo.server.service import Service
from octavo.text.chat import ChatTemplate, TemplateError, encode_chat
from octavo.text.messages import prepare

_PATH = re.compile(r"messages(\[\d+\]|\.\w+)*")
"""Where a message that the template's preparation refuses begins with the field at fault."""
_OURS = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})


@dataclass(frozen=True, slots=True)
class Reply:
    """The next message of a conversation, on its way."""

    body: ChatRequest
    job: Job
    calling: Calling | None
    """How it may call tools; None: its text is its content."""
    echoed: str
    """What stands before its text."""


async def chat(service: Service, exchange: Exchange) -> None:
    """Answers the last message of a conversation `n` times."""
    body = await read(service, exchange, ChatRequest)
    reply = await begin(service, exchange, body)
    await respond(exchange, body, reply.job, ChunkWire(body, reply.job, ChatShape(service, reply)))


async def begin(service: Service, exchange: Exchange, body: ChatRequest) -> Reply:
    """What becomes of a conversation, in whichever protocol it came. Raises ApiError 400."""
    check_stream(body)
    check_choices(service, body, 1)
    structure = await asked_structure(service, body)
    calling = await asked_calls(service, exchange, body, structure) if body.tools or body.tool_choice else None
    if calling is not None:
        calling = replace(calling, read=service.meters.calls_read(exchange.path, streams=bool(body.stream)))
        structure = calling.structure or structure
        body = _with_marks(service, body, calling)
    asked = asked_length(body, None)
    messages = await chat_messages(service, exchange, body.messages, body.chat_template_kwargs, body.documents)
    ids = await chat_ids(service, exchange, body, messages, most_tokens(service, body))
    echoed = _echoed(body, messages)
    prompt = truncated(service.context(exchange.tenant), body, Prompt(tuple(ids)), asked)
    job = make_job(service, exchange, body, [prompt], asked, _scores(body), structure)
    return Reply(body, job, calling, echoed)


def _with_marks(service: Service, body: ChatRequest, calling: Calling) -> ChatRequest:
    """Control tokens that say where a call begins must stay in the text."""
    if any(text in service.tokenizer.controls for text in calling.format.controls):
        return body.model_copy(update={"skip_special_tokens": False})
    return body


def _scores(body: ChatRequest) -> Scores:
    """Raises ApiError where alternatives are asked for without logprobs."""
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    return Scores((body.top_logprobs or 0) if body.logprobs else None, body.prompt_logprobs, "top_logprobs")


def _echoed(body: ChatRequest, messages: Sequence[Message]) -> str:
    if not body.echo:
        return ""
    if not body.continue_final_message:
        raise invalid("echo repeats the message that is continued: it needs continue_final_message: true", "echo")
    return prepare(messages[-1:])[0]["content"]


async def chat_messages(
    service: Service,
    exchange: Exchange,
    messages: Sequence[Message],
    variables: Mapping[str, Any] | None,
    documents: Sequence[Mapping[str, Any]] | None = None,
) -> list[Message]:
    """The messages as the template expects them. What it does not read is told as unknown fields are.

    Raises ApiError 400, also for too many of them, and for documents that it does not read.
    """
    template = service.template
    if template is None:
        raise invalid("this model has no chat template: use /v1/completions, or start with --chat-template", "messages")
    check_count(
        service.config.limits, "messages", messages, "max_messages"
    )  # a message of another protocol may make several here
    prepared = await service.off_loop(exchange.num_bytes, lambda: checked(messages, template.source))
    if documents and "documents" not in template.variables:
        raise invalid("documents would not be seen: the chat template does not read them", "documents")
    vain = [name for name in variables or () if name not in template.variables and name not in _OURS]
    names = [f"chat_template_kwargs.{name}" for name in vain]
    report_unknown(service, exchange, [*names, *unread(prepared, template.words)])
    return prepared


async def chat_ids(
    service: Service,
    exchange: Exchange,
    body: ChatRequest | TextRequest,
    messages: Sequence[Message],
    most: int | None = None,
) -> list[int]:
    """The conversation as the model reads it: no more than `most` tokens, where it is given.

    Raises ApiError 400, with the template's own words where it refuses.
    """
    template = service.template
    assert template is not None, "chat_messages has checked"
    opens = _turn(body)

    def encode() -> list[int]:
        options = _template_options(body, template)
        return encode_chat(service.tokenizer, template, list(messages), most, add_generation_prompt=opens, **options)

    try:
        ids = await service.off_loop(exchange.num_bytes, encode)
    except TemplateError as error:
        found = _PATH.match(str(error))
        param = found.group() if found else "messages"
        raise ApiError(400, str(error), param=param, code="chat_template_error") from None
    if not ids:
        raise invalid("the chat template makes an empty prompt of these messages", "messages")
    return ids


def _turn(body: ChatRequest | TextRequest) -> bool:
    """Does the template open the assistant's turn? Not where the last message is continued."""
    if body.continue_final_message and body.add_generation_prompt:
        message = "add_generation_prompt opens a new turn and continue_final_message goes on with the last: not both"
        raise invalid(message, "continue_final_message")
    return not body.continue_final_message if body.add_generation_prompt is None else body.add_generation_prompt


def _tools(body: ChatRequest | TextRequest, template: ChatTemplate) -> list[dict[str, Any]] | None:
    """What the prompt says of tools. A template that knows none is told of them only where they may be called."""
    called = not isinstance(body, ChatRequest) or body.tool_choice != "none"
    return shown_tools(body.tools) if called or template.knows_tools else None


def _template_options(body: ChatRequest | TextRequest, template: ChatTemplate) -> Mapping[str, Any]:
    given = dict(body.chat_template_kwargs or {})
    taken = _OURS.intersection(given)
    if taken:
        name = min(taken)
        raise invalid(f"chat_template_kwargs has {name!r}, which is a field of the request", "chat_template_kwargs")
    documents = getattr(body, "documents", None)
    if documents:
        given["documents"] = documents
    return {**given, "tools": _tools(body, template), "continue_final_message": bool(body.continue_final_message)}


class ChatShape:
    """The chat shape: messages and deltas, and logprobs token by token."""

    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    text_field: tuple[bytes, bytes] = (b'"delta":{"content":', b"}")

    def __init__(self, service: Service, reply: Reply) -> None:
        body = reply.body
        self._body = body
        self._calling = reply.calling
        self._calls: dict[int, CallWriter] = {}
        """For each choice of a stream that may call tools."""
        self._job = reply.job
        self._echoed = reply.echoed
        self._begun: set[int] = set()
        self._writer = LogprobWriter(service.tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
        self._stays_plain = not (body.logprobs or body.return_token_ids or reply.calling)

    def plain(self, delta: Delta) -> bool:
        return self._stays_plain and not delta.finish and delta.choice in self._begun

    def chunk(self, delta: Delta) -> tuple[dict[str, Any], dict[str, Any]] | None:
        message: dict[str, Any] = {"content": delta.text}
        if self._calling is not None:
            message = self._called(delta, self._calling)
            if not (message or delta.finish or delta.spelled or delta.token_ids):
                return None
        beside = {} if self._begun else self.beside()
        if delta.choice not in self._begun:
            self._begun.add(delta.choice)
            text = self._echoed + message.get("content", "")
            message |= {"role": "assistant", "content": None if "tool_calls" in message and not text else text}
        choice = Gathered()
        choice.add(delta)
        return self._choice(delta.choice, choice, "delta", message), beside

    def _called(self, delta: Delta, calling: Calling) -> dict[str, Any]:
        """What a delta adds to a message that may call tools; its reason to end becomes the one that clients know."""
        calls = self._calls.setdefault(delta.choice, CallWriter(calling))
        content, called = calls.read(delta.text, delta.finish)
        delta.finish = calls.reason(delta.finish)
        return {**({"content": content} if content else {}), **({"tool_calls": called} if called else {})}

    def whole(self, index: int, choice: Gathered) -> dict[str, Any]:
        content: str | None = self._echoed + "".join(choice.text)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self._calling is not None:
            message |= self._whole_calls(choice, CallWriter(self._calling))
        return self._choice(index, choice, "message", message)

    def _whole_calls(self, choice: Gathered, calls: CallWriter) -> dict[str, Any]:
        content, called = calls.read("".join(choice.text), choice.finish or "")
        choice.finish = calls.reason(choice.finish)
        if not called:
            return {"content": self._echoed + content}
        for call in called:
            del call["index"]
        return {"content": self._echoed + content or None, "tool_calls": called}

    def beside(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if self._body.prompt_logprobs is not None:
            fields["prompt_logprobs"] = self._writer.prompt(self._job.answers[0].prompt_scores)
        if self._body.return_token_ids:
            fields["prompt_token_ids"] = self._job.requests[0].prompt
        return fields

    def _choice(self, index: int, choice: Gathered, field: str, message: dict[str, Any]) -> dict[str, Any]:
        logprobs = self._writer.chat(choice.spelled) if self._body.logprobs else None
        shaped = {"index": index, field: message, "logprobs": logprobs, "finish_reason": choice.finish}
        if choice.finish:
            shaped["stop_reason"] = choice.stop
        if self._body.return_token_ids:
            shaped["token_ids"] = choice.token_ids
        return shaped
