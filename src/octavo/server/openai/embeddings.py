"""POST /v1/embeddings"""

import time
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.core.events import Admitted, Embedded, Event, Finished, Refused
from octavo.core.misses import Miss
from octavo.core.parameter import ParameterError
from octavo.core.request import Request
from octavo.core.types import FinishReason, Pooling
from octavo.engine.embedding import Form, PoolingParams, form_of, vector
from octavo.server.exchange import Exchange
from octavo.server.openai.chat import chat_ids, chat_messages
from octavo.server.openai.embedding_schema import EmbeddingRequest
from octavo.server.openai.errors import bad_parameter, broken_off, failed, invalid, refused, too_long, unavailable
from octavo.server.openai.following import followed, together
from octavo.server.openai.intake import encoded, most_tokens, read
from octavo.server.openai.job import announce, name_of, requests_of
from octavo.server.openai.prompts import Prompt, cut
from octavo.server.openai.schema import TextRequest
from octavo.server.service import Service


async def embed(service: Service, exchange: Exchange) -> None:
    """The embedding of each input."""
    body = await read(service, exchange, EmbeddingRequest)
    form = _form(service, body)
    field = "input" if body.messages is None else "messages"
    given = await (_inputs if body.messages is None else _conversation)(service, exchange, body)
    context = service.context(exchange.tenant)
    prompts = [cut(prompt, body.truncate_prompt_tokens, context, body.truncation_side) for prompt in given]
    _check_lengths(service, exchange, prompts, field)
    wanted = {"pooling": Pooling(service.pooler.pooling_type)}
    pairs = [(prompt, wanted) for prompt in prompts]
    requests = requests_of(service, exchange.tenant, pairs, body.priority, body.cache_salt)
    if exchange.spending is not None:
        exchange.spending.charge(sum(len(request.prompt) for request in requests), field)
    job = EmbeddingJob(service, [Vector(request, form, body.encoding_format == "base64") for request in requests])
    announce(service, exchange, requests, body.request_id)
    with service.duty.flight(exchange.began, service.config.server.request_timeout) as stopped:
        await exchange.while_connected(_answer(exchange, body, job), stopped)


def _form(service: Service, body: EmbeddingRequest) -> Form:
    """Raises ApiError 400 for dimensions that there are not, and for two names that differ."""
    if None not in (body.use_activation, body.normalize) and body.use_activation != body.normalize:
        raise invalid("normalize is the older name of use_activation, and differs from it", "normalize")
    asked = body.normalize if body.use_activation is None else body.use_activation
    params = PoolingParams(dimensions=body.dimensions, use_activation=asked)
    try:
        return form_of(params, service.pooler, service.facts.capacity.hidden_size)
    except ParameterError as error:
        raise bad_parameter(error, error.field) from None


async def _inputs(service: Service, exchange: Exchange, body: EmbeddingRequest) -> list[Prompt]:
    if body.input is None:
        raise invalid("input is required: what to embed, or messages instead", "input", "missing_required_parameter")
    for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
        if getattr(body, name):
            raise invalid(f"{name} is for messages, and there is an input", name)
    adds = body.add_special_tokens is not False
    return await encoded(service, exchange, body.input, "input", adds=adds, at_most=most_tokens(service, body))


async def _conversation(service: Service, exchange: Exchange, body: EmbeddingRequest) -> list[Prompt]:
    if body.input is not None:
        raise invalid("give one of input and messages", "input")
    if body.add_special_tokens:
        raise invalid("the chat template alone writes the control tokens of messages", "add_special_tokens")
    text = TextRequest(
        messages=body.messages,
        add_generation_prompt=bool(body.add_generation_prompt),
        continue_final_message=body.continue_final_message,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    messages = await chat_messages(service, exchange, body.messages or [], body.chat_template_kwargs)
    return [Prompt(tuple(await chat_ids(service, exchange, text, messages, most_tokens(service, body))))]


def _check_lengths(service: Service, exchange: Exchange, prompts: Sequence[Prompt], field: str) -> None:
    """Raises ApiError 400 for the first prompt that the context does not hold. One may fill it."""
    context = service.context(exchange.tenant)
    for number, prompt in enumerate(prompts):
        if len(prompt.ids) > context:
            which = f"input {number}" if len(prompts) > 1 else "the input"
            flag = service.context_flag(exchange.tenant)
            why = f" ({flag}), but {which} has {len(prompt.ids)}; truncate_prompt_tokens cuts it"
            raise too_long(context, why, field)


class Vector:
    """One embedding on its way: the events of its request become its entry in the answer. Raises ApiError."""

    def __init__(self, request: Request, form: Form, base64: bool) -> None:
        self.request = request
        self.entry: bytes | None = None
        """As JSON, but for its number; None until it is known."""
        self.admitted = False
        """Has the engine begun to work on it?"""
        self.cached_tokens = 0
        self.miss: Miss | None = None
        self._form = form
        self._base64 = base64

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            if type(event) is Admitted:
                self.admitted = True
                if not event.resumed:
                    self.cached_tokens, self.miss = event.cached_tokens, event.miss
            elif type(event) is Embedded:
                self.entry = self._written(event)
            elif type(event) is Refused:
                raise refused(event)
            elif type(event) is Finished and event.reason is FinishReason.ERROR:
                raise broken_off(event)
            elif type(event) is Finished and event.reason is FinishReason.ABORT:
                raise unavailable(event.message or "the request was cancelled by the server", "cancelled")

    def _written(self, event: Embedded) -> bytes:
        numbers = vector(event, self._form)
        return b'"%b"' % b64encode(numbers) if self._base64 else msgspec.json.encode(numbers.tolist())


@dataclass(frozen=True, slots=True)
class EmbeddingJob:
    """The inputs of one HTTP request on their way through the engine."""

    service: Service
    vectors: Sequence[Vector]

    @property
    def name(self) -> str:
        """What the ids of its requests begin with."""
        return name_of([each.request for each in self.vectors])

    @property
    def window(self) -> int:
        """Inputs that are in the engine at once: half of the slots, so that a long list leaves room for others."""
        return max(1, self.service.config.scheduler.max_num_seqs // 2)

    @property
    def num_tokens(self) -> int:
        return sum(len(each.request.prompt) for each in self.vectors)

    @property
    def spent(self) -> int:
        """The tokens that a tenant's quota counts."""
        return sum(len(each.request.prompt) for each in self.vectors if each.admitted)

    def usage(self) -> dict[str, Any]:
        miss = next((each.miss for each in self.vectors if each.miss is not None), None)
        why = {} if miss is None else {"cache_miss_reason": miss.reason, "cache_miss_at": miss.at}
        cached = sum(each.cached_tokens for each in self.vectors)
        details = {"cached_tokens": cached, **why}
        return {"prompt_tokens": self.num_tokens, "total_tokens": self.num_tokens, "prompt_tokens_details": details}

    async def run(self) -> None:
        """Returns when all are known. Raises ApiError, and then nothing is left running."""
        turns = iter(self.vectors)

        async def some() -> None:
            for each in turns:
                await self._follow(each)

        await together(some() for _ in range(min(self.window, len(self.vectors))))

    async def _follow(self, each: Vector) -> None:
        async with followed(self.service, each.request) as (steps, place):
            async for events in steps:
                each.take(events)
                if each.admitted:
                    place.leave()
        if each.entry is None:
            raise failed("the engine ended this request without saying why")


async def _answer(exchange: Exchange, body: EmbeddingRequest, job: EmbeddingJob) -> None:
    """Settles the quota before the answer, as whoever has that may send the next request at once."""
    exchange.tokens = f"{job.num_tokens} + 0 tokens"
    try:
        await job.run()
    finally:
        if exchange.spending is not None:
            exchange.spending.end(job.spent)
    await exchange.reply(200, _written(body, job))


def _written(body: EmbeddingRequest, job: EmbeddingJob) -> bytes:
    """The answer. Its vectors are JSON already: a long list of them would hold up everybody else."""
    data = [
        {"object": "embedding", "index": index, "embedding": msgspec.Raw(each.entry or b"")}
        for index, each in enumerate(job.vectors)
    ]
    answer = {
        "id": f"embd-{body.request_id or job.name}",
        "object": "list",
        "created": int(time.time()),
        "model": body.model or job.service.names[0],
        "system_fingerprint": job.service.facts.fingerprint,
        "data": data,
        "usage": job.usage(),
    }
    return msgspec.json.encode(answer)
