"""Job: the prompts of one HTTP request, checked, and on their way through the engine."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from octavo.config.logs import in_trace
from octavo.config.tenants import Tenant
from octavo.core.events import Generated
from octavo.core.misses import Miss
from octavo.core.request import Request
from octavo.core.sampling import StructuredOutput
from octavo.core.types import FinishReason, RequestId
from octavo.engine.client import Events
from octavo.engine.clock import now
from octavo.server.exchange import Exchange
from octavo.server.openai.answer import Answer, Delta
from octavo.server.openai.errors import failed
from octavo.server.openai.following import followed, together
from octavo.server.openai.params import Asked, Scores, checked_priority, namespace, sampling_params
from octavo.server.openai.prompts import Prompt
from octavo.server.openai.schema import Sampling
from octavo.server.recent import Origin
from octavo.server.service import Service
from octavo.server.tenancy import Spending
from octavo.text.bad_words import resolved


class Sink(Protocol):
    """Is given what one step adds: at most one delta for each choice."""

    @property
    def free(self) -> bool:
        """May `put` be called now?"""
        ...

    def put(self, deltas: Sequence[Delta]) -> None:
        """Takes them at once. Only while `free`."""
        ...

    async def take(self, deltas: Sequence[Delta]) -> None:
        """Takes them as soon as it can."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """One request to the engine for each prompt, and the answer that comes back."""

    service: Service
    requests: Sequence[Request]
    answers: Sequence[Answer]
    prompt_only: bool
    """What the engine generates is left out."""
    spending: Spending | None = None
    """What it takes from its tenant's quotas."""

    @property
    def name(self) -> str:
        """What the ids of its requests begin with, and the ids of its answers end with."""
        return name_of(self.requests)

    @property
    def n(self) -> int:
        """Choices that each prompt is answered with; they are numbered prompt by prompt."""
        return self.requests[0].params.n

    @property
    def num_choices(self) -> int:
        """Choices that the engine gives for each prompt: with best_of more than are answered with."""
        return self.requests[0].params.num_choices

    def keep_best(self) -> list[int]:
        """The numbers of the choices to answer with, prompt by prompt, out of all that the engine gave."""
        kept = [answer.keep_best() for answer in self.answers]
        return [first * self.num_choices + number for first, numbers in enumerate(kept) for number in numbers]

    @property
    def num_logprobs(self) -> int:
        """About how many there are to write down, of the tokens and of those that could have been."""
        params = self.requests[0].params
        prompt = sum(len(answer.prompt_scores) for answer in self.answers) * params.n
        output = 0 if params.logprobs is None else sum(answer.completion_tokens for answer in self.answers)
        return prompt * (1 + (params.prompt_logprobs or 0)) + output * (1 + (params.logprobs or 0))

    def usage(self) -> dict[str, Any]:
        """The tokens so far. Each prompt counts once, whatever its n."""
        prompt = sum(len(request.prompt) for request in self.requests)
        miss = {} if self.miss is None else {"cache_miss_reason": self.miss.reason, "cache_miss_at": self.miss.at}
        output = 0 if self.prompt_only else sum(answer.completion_tokens for answer in self.answers)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": sum(answer.cached_tokens for answer in self.answers), **miss},
        }

    @property
    def miss(self) -> Miss | None:
        """Why the first of the prompts that the prefix cache did not have to its end was missed."""
        return next((answer.miss for answer in self.answers if answer.miss is not None), None)

    @property
    def spent(self) -> int:
        """The tokens that a tenant's quota counts: of all prompts that were looked at, and all that answers took."""
        prompts = zip(self.requests, self.answers, strict=True)
        looked_at = sum(len(request.prompt) for request, answer in prompts if answer.admitted)
        return looked_at + sum(answer.tokens_spent for answer in self.answers)

    async def run(self, sink: Sink) -> None:
        """Feeds `sink` until each choice has ended. Raises ApiError, and then nothing is left running.

        The quotas are settled on return: before a client can know the end of its answer, and send the next request.
        """
        try:
            await self._follow_all(sink)
        finally:
            if self.spending is not None:
                self.spending.end(self.spent)

    async def _follow_all(self, sink: Sink) -> None:
        if len(self.requests) == 1:
            return await self._follow(0, sink)
        await together(self._follow(index, sink) for index in range(len(self.requests)))

    async def _follow(self, index: int, sink: Sink) -> None:
        request, answer = self.requests[index], self.answers[index]
        async with followed(self.service, request) as (steps, place):
            steps.at_once(partial(self._pass_on, index, sink))
            async for events in steps:
                deltas = self._advance(index, events)
                if answer.admitted:
                    place.leave()
                if deltas:
                    await sink.take(deltas)
                if answer.done:
                    return
        raise failed("the engine ended this request without saying why")

    def _pass_on(self, index: int, sink: Sink, events: Events) -> Events | None:
        """Nearly all steps: one that brings tokens to who is free to take them. Leaves an end to whoever follows it."""
        if not sink.free:
            return events
        for event in events:
            if type(event) is not Generated:
                return events
        deltas = self._advance(index, events)
        if deltas:
            sink.put(deltas)
        return () if self.answers[index].done else None

    def _advance(self, index: int, events: Events) -> Sequence[Delta]:
        answer = self.answers[index]
        deltas = answer.take(events)
        stopped = answer.stopped_here()
        if stopped:
            self._end_stopped(self.requests[index].request_id, stopped)  # before a slow client is waited for
        return self._adapted(deltas, index * self.num_choices) if index or self.prompt_only else deltas

    def _end_stopped(self, request_id: RequestId, choices: Sequence[int]) -> None:
        """Stop strings are found here: of the engine's work for these choices nobody would see any more."""
        for choice in choices:
            self.service.recent.stopped(request_id, choice)  # the engine will say that it was aborted
            self.service.client.cancel(request_id, choice)

    def _adapted(self, deltas: Sequence[Delta], first: int) -> list[Delta]:
        for delta in deltas:
            delta.choice += first
        if self.prompt_only:
            return [Delta(delta.choice, "", FinishReason.LENGTH.value) for delta in deltas if delta.finish]
        return list(deltas)


def make_job(
    service: Service,
    exchange: Exchange,
    body: Sampling,
    prompts: Sequence[Prompt],
    asked: Asked,
    scores: Scores,
    structure: StructuredOutput | None,
) -> Job:
    """Checks all that can be checked before the engine sees it. Raises ApiError 400."""
    capacity = service.facts.capacity
    param = "prompt" if "prompt" in type(body).model_fields else "messages"
    strict, context = service.config.server.strict, service.context(exchange.tenant)
    whole, flag = context == capacity.max_model_len, service.context_flag(exchange.tenant)
    limits = [asked.limit(len(prompt.ids), context, param, strict=strict, flag=flag) for prompt in prompts]
    eos = service.tokenizer.eos_token_ids
    checked = {
        limit: sampling_params(body, limit, capacity.vocab_size, eos, scores, structure) for limit in set(limits)
    }
    params = {limit: resolved(each, service.tokenizer) for limit, each in checked.items()}
    if whole and asked.max_tokens is None:  # as far as context and pool go: the engine knows
        params = {limit: replace(each, max_tokens=None) for limit, each in params.items()}
    seed = service.seed(body.seed)
    _tell(exchange, seed, asked, min(limits))
    pairs = [(prompt, {"params": params[limit], "seed": seed}) for prompt, limit in zip(prompts, limits, strict=True)]
    requests = requests_of(service, exchange.tenant, pairs, body.priority, body.cache_salt)
    if exchange.spending is not None:
        exchange.spending.charge(_most_spent(requests, asked), "max_tokens" if asked.explicit else param)
    ids = bool(body.return_token_ids)
    answers = [Answer(service.tokenizer, request.params, return_ids=ids) for request in requests]
    job = Job(service, requests, answers, asked.prompt_only, exchange.spending)
    announce(service, exchange, requests, body.request_id)
    return job


def announce(service: Service, exchange: Exchange, requests: Sequence[Request], also: str | None = None) -> None:
    """Tells all that follow requests whose these are, which are about to be submitted. `also`: their client's name."""
    origin = Origin(name_of(requests), exchange.path, exchange.tenant.name, exchange.id)
    service.recent.came(origin, also)
    if service.traces is not None:
        trace = service.traces.came(origin, requests, exchange.headers)
        in_trace(f"{trace.trace_id:032x}" if trace.sampled else "")
    service.journal.came(requests, service.tokenizer.decode)


def name_of(requests: Sequence[Request]) -> str:
    """What the ids of the requests of one HTTP request begin with."""
    return requests[0].request_id.rpartition("-")[0]


def _most_spent(requests: Sequence[Request], asked: Asked) -> int:
    """What a tenant's quota must have room for: the prompts, and the answers where their length was asked for."""
    answers = sum((request.params.max_tokens or 0) * request.params.width for request in requests)
    return sum(len(request.prompt) for request in requests) + (answers if asked.explicit else 0)


def requests_of(
    service: Service,
    tenant: Tenant,
    asked: Sequence[tuple[Prompt, Mapping[str, Any]]],
    priority: int | None,
    cache_salt: str | None,
) -> list[Request]:
    """A request to the engine for each prompt, with what is wanted of it. Their ids begin alike, and end with numbers.

    Raises ApiError 400 for a priority or salt that may not be.
    """
    name, arrival_s = secrets.token_hex(12), now()
    rank = checked_priority(priority, service.config.scheduler.scheduling_policy, tenant)
    space = namespace(tenant, cache_salt)
    return [
        Request(
            request_id=f"{name}-{index}",
            prompt=prompt.ids,
            arrival_s=arrival_s,
            priority=rank,
            namespace=space,
            tenant=tenant.name,
            weight=tenant.rules.weight,
            **wanted,
        )
        for index, (prompt, wanted) in enumerate(asked)
    ]


def _tell(exchange: Exchange, seed: int, asked: Asked, limit: int) -> None:
    """What was decided for the client, as headers: the seed, and a length that was lowered to what fits."""
    exchange.header("x-octavo-seed", str(seed))
    if asked.explicit and not asked.prompt_only and asked.max_tokens is not None and limit < asked.max_tokens:
        exchange.header("x-octavo-max-tokens", str(limit))
