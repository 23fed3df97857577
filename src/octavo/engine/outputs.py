"""What an offline generation gives back, in the shape of vLLM's outputs; and how events become it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from octavo.core.events import Admitted, Event, Finished, Generated, PromptScored, Queued
from octavo.core.misses import Miss
from octavo.core.plan import ScoredToken
from octavo.core.request import Request
from octavo.core.types import FinishReason, TokenId

if TYPE_CHECKING:  # an engine process has this module, but no text
    from octavo.text.stream import TextDelta
    from octavo.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's place in the distribution that a token was drawn from."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


Distribution = dict[TokenId, Logprob]
"""The token itself first, then the most likely ones, best first."""


@dataclass(slots=True)
class CompletionOutput:
    """One choice."""

    index: int
    text: str = ""
    token_ids: list[TokenId] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[Distribution] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    """The stop string, or the one of `stop_token_ids`, that ended it."""

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class Timing:
    """When it happened, in seconds of the engine's clock. None: it did not."""

    queued_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None

    def take(self, event: Event) -> None:
        if isinstance(event, Queued):
            self.queued_s = event.time_s
        elif isinstance(event, Generated):
            self.last_token_s = event.time_s
            if self.first_token_s is None:
                self.first_token_s = event.time_s

    @property
    def to_first_token_s(self) -> float | None:
        """The wait, the prompt's computation, and the first draw."""
        return None if self.queued_s is None or self.first_token_s is None else self.first_token_s - self.queued_s

    def tokens_per_s(self, count: int) -> float | None:
        """The rate of those after the first, of `count` in all; None where there are none."""
        if self.first_token_s is None or self.last_token_s is None or self.last_token_s <= self.first_token_s:
            return None
        return (count - 1) / (self.last_token_s - self.first_token_s)


@dataclass(slots=True)
class RequestOutput:
    """One prompt and its choices."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[TokenId]
    outputs: list[CompletionOutput]
    finished: bool = False
    num_cached_tokens: int = 0
    cache_miss: Miss | None = None
    """Why more than the last prompt token had to be computed; None where no more had to be."""
    prompt_logprobs: list[Distribution | None] | None = None
    """One for each prompt token; None for the first."""
    timing: Timing = field(default_factory=Timing, compare=False)


class GenerationError(RuntimeError):
    """A request was accepted and then failed: the message is the engine's."""


class Gathering:
    """Turns the events of one request into its RequestOutput."""

    def __init__(self, request: Request, prompt: str | None, tokenizer: "Tokenizer") -> None:
        from octavo.text.stream import TextStream

        params = request.params
        self._params = params
        self._tokenizer = tokenizer
        self._streams = [TextStream(tokenizer, params) for _ in range(params.num_choices)]
        self._ended: set[int] = set()
        self._stopped_here: list[int] = []
        ranked = params.use_beam_search or params.ranks_samples
        total = 0.0 if ranked or params.logprobs is not None else None
        logprobs = params.logprobs is not None
        self.output = RequestOutput(
            request_id=request.request_id,
            prompt=prompt,
            prompt_token_ids=list(request.prompt),
            outputs=[
                CompletionOutput(index, cumulative_logprob=total, logprobs=[] if logprobs else None)
                for index in range(params.num_choices)
            ],
            prompt_logprobs=None if params.prompt_logprobs is None else [None],
        )

    @property
    def stopped(self) -> bool:
        """All choices have all the text that they will have, whether or not the engine knows."""
        return all(choice.finished() for choice in self.output.outputs)

    @property
    def over(self) -> bool:
        """The engine has ended all choices."""
        return self.output.finished

    def stopped_here(self) -> list[int]:
        """The choices that a stop string has ended since the last call, and that go on in the engine."""
        stopped, self._stopped_here = self._stopped_here, []
        return [index for index in stopped if index not in self._ended]

    def take(self, events: Sequence[Event]) -> None:
        """Takes the request's events of one step. Raises GenerationError where the request failed."""
        endings = {event.choice: event for event in events if isinstance(event, Finished)}
        for event in events:
            self.output.timing.take(event)
            if isinstance(event, Generated):
                ending = endings.get(event.choice)
                self._generated(self.output.outputs[event.choice], event.tokens, ending and ending.stop_token)
            elif isinstance(event, Finished):
                self._finished(self.output.outputs[event.choice], event)
            elif isinstance(event, Admitted) and not event.resumed:
                self.output.num_cached_tokens, self.output.cache_miss = event.cached_tokens, event.miss
            elif isinstance(event, PromptScored) and self.output.prompt_logprobs is not None:
                self.output.prompt_logprobs += map(self._distribution, event.scored)

    def _generated(self, choice: CompletionOutput, tokens: Sequence[ScoredToken], stop_token: TokenId | None) -> None:
        if choice.finished():
            return
        delta = self._streams[choice.index].push([token.token for token in tokens], stop_token=stop_token)
        for token in tokens[: delta.num_tokens]:
            self._count(choice, token)
        self._add_text(choice, delta)
        if delta.stop is not None:
            self._stopped_here.append(choice.index)

    def _add_text(self, choice: CompletionOutput, delta: "TextDelta") -> None:
        choice.text += delta.text
        if delta.stop is not None:
            choice.finish_reason, choice.stop_reason = FinishReason.STOP.value, delta.stop

    def _count(self, choice: CompletionOutput, token: ScoredToken) -> None:
        choice.token_ids.append(token.token)
        if choice.cumulative_logprob is not None:
            choice.cumulative_logprob += token.logprob or 0.0
        if choice.logprobs is not None:
            choice.logprobs.append(self._distribution(token))

    def _finished(self, choice: CompletionOutput, event: Finished) -> None:
        if event.reason is FinishReason.ERROR:
            raise GenerationError(f"request {self.output.request_id}: {event.message}")
        if not choice.finished():
            choice.finish_reason = event.reason.value
            choice.stop_reason = event.stop_token if event.stop_token in self._params.stop_token_ids else None
            self._add_text(choice, self._streams[choice.index].finish())
        self._ended.add(choice.index)
        if len(self._ended) == self._params.num_choices:
            self.output.finished = True
            self._keep_best()

    def _keep_best(self) -> None:
        """Of more choices than were asked for, those with the highest sum of logprobs, best first."""
        if self._params.ranks_samples:
            ranked = sorted(self.output.outputs, key=lambda choice: -(choice.cumulative_logprob or 0.0))
            self.output.outputs = ranked[: self._params.n]
            for index, choice in enumerate(self.output.outputs):
                choice.index = index

    def _distribution(self, token: ScoredToken) -> Distribution:
        text = self._tokenizer.token_text
        found = {token.token: Logprob(token.logprob or 0.0, token.rank, text(token.token))}
        for rank, (other, logprob) in enumerate(token.alternatives, 1):
            found.setdefault(other, Logprob(logprob, rank, text(other)))
        return found
