"""Answer: the events of one request become what its choices add, step by step. The same for streams and not.

Pure: no loop, no clock, no sockets. Whoever drives it feeds it the engine's events and writes what comes out.
"""

from collections.abc import Sequence

import msgspec

from octavo.core.events import Admitted, Event, Finished, Generated, PromptScored, Refused
from octavo.core.misses import Miss
from octavo.core.plan import ScoredToken
from octavo.core.sampling import SamplingParams
from octavo.core.types import FinishReason
from octavo.server.openai.errors import broken_off, refused, unavailable
from octavo.text.stream import TextDelta, TextStream
from octavo.text.tokenizer import Tokenizer


class Delta(msgspec.Struct):
    """What one step adds to one choice. `finish` is set in the last one of a choice, and only there."""

    choice: int
    text: str
    finish: str | None = None
    stop: str | int | None = None
    """What ended it: a stop string, or a stop token that is not an end-of-text token."""
    spelled: Sequence[ScoredToken] = ()
    """With logprobs: the tokens that spell the text."""
    token_ids: Sequence[int] = ()
    """With return_token_ids: the tokens that count as output."""


class _Choice:
    __slots__ = ("done", "logprob", "num_tokens", "pending", "text")

    def __init__(self, text: TextStream) -> None:
        self.text = text
        self.pending: list[ScoredToken] = []
        """Tokens that no text has accounted for yet; only kept with logprobs."""
        self.done = False
        self.num_tokens = 0
        self.logprob = 0.0
        """The sum over its tokens; as `num_tokens` only where choices are ranked by it."""


class Answer:
    """The answer to one prompt, while it comes. Raises ApiError where there will be none."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, *, return_ids: bool = False) -> None:
        self._choices = [_Choice(TextStream(tokenizer, params)) for _ in range(params.num_choices)]
        self._eos = frozenset(tokenizer.eos_token_ids)
        self._logprobs = params.logprobs is not None
        self._params = params
        self._ranks = params.ranks_samples
        self._plain = not (self._logprobs or return_ids or self._ranks)
        self._return_ids = return_ids
        self._open = params.num_choices
        self._num_passed_over = 0
        """Tokens of choices that were generated and are not returned."""
        self.admitted = False
        """Has the engine begun to work on it?"""
        self.cached_tokens = 0
        self.miss: Miss | None = None
        self.completion_tokens = 0
        self.prompt_scores: list[ScoredToken] = []
        self._stopped_here: list[int] = []

    @property
    def done(self) -> bool:
        """Has each choice come to its end? Of a stop string the engine does not know."""
        return self._open == 0

    def keep_best(self) -> list[int]:
        """Which choices are returned: of more than were asked for the most likely, best first. Only they count then."""
        if not self._ranks:
            return list(range(self._params.n))
        numbers = range(len(self._choices))
        best = sorted(numbers, key=lambda number: -self._choices[number].logprob)[: self._params.n]
        kept = sum(self._choices[number].num_tokens for number in best)
        self._num_passed_over, self.completion_tokens = self.completion_tokens - kept, kept
        return best

    @property
    def tokens_spent(self) -> int:
        """Tokens that the answer took: of all samples that it is the best of, and of all beams that were beside it."""
        if self._params.use_beam_search:
            return self.completion_tokens * self._params.width // self._params.n
        return self.completion_tokens + self._num_passed_over

    def stopped_here(self) -> list[int]:
        """The choices that a stop string has ended since the last call, and that go on in the engine."""
        stopped, self._stopped_here = self._stopped_here, []
        return stopped

    def take(self, events: Sequence[Event]) -> list[Delta]:
        """What these events, those of one step, add: at most one delta for each choice."""
        if len(events) == 1 and type(event := events[0]) is Generated:
            delta = self._generated(event, None)
            return [] if delta is None else [delta]
        return self._take_all(events)

    def _take_all(self, events: Sequence[Event]) -> list[Delta]:
        ends = {event.choice: event for event in events if type(event) is Finished}
        last = {event.choice: event for event in events if type(event) is Generated}
        deltas: dict[int, Delta] = {}
        for event in events:
            if type(event) is Generated:
                delta = self._generated(event, ends.get(event.choice) if event is last[event.choice] else None)
            elif type(event) is Finished:
                delta = self._finished(event, deltas.get(event.choice))
            else:
                delta = self._noted(event)
            if delta is not None:
                deltas[delta.choice] = _joined(deltas.get(delta.choice), delta)
        return list(deltas.values())

    def _noted(self, event: Event) -> None:
        if type(event) is Admitted:
            self.admitted = True
            if not event.resumed:
                self.cached_tokens, self.miss = event.cached_tokens, event.miss
        elif type(event) is PromptScored:
            self.prompt_scores += event.scored
        elif type(event) is Refused:
            raise refused(event)

    def _generated(self, event: Generated, end: Finished | None) -> Delta | None:
        choice = self._choices[event.choice]
        if choice.done:
            return None
        tokens = event.tokens
        ids = [tokens[0].token] if len(tokens) == 1 else [scored.token for scored in tokens]
        piece = choice.text.push(ids, stop_token=None if end is None else end.stop_token)
        self.completion_tokens += piece.num_tokens
        delta = Delta(event.choice, piece.text)
        if not self._plain:
            self._detail(delta, choice, piece, tokens)
        if piece.stop is not None:
            self._end(choice, delta, "stop", piece.stop)
            if end is None:
                self._stopped_here.append(event.choice)
        return delta

    def _detail(self, delta: Delta, choice: _Choice, piece: TextDelta, tokens: Sequence[ScoredToken]) -> None:
        if self._ranks:
            choice.num_tokens += piece.num_tokens
            choice.logprob += sum(scored.logprob or 0.0 for scored in tokens[: piece.num_tokens])
        if self._return_ids:
            delta.token_ids = [scored.token for scored in tokens[: piece.num_tokens]]
        if self._logprobs:
            choice.pending += tokens
            delta.spelled = choice.pending[: piece.num_spelled]
            del choice.pending[: piece.num_spelled]

    def _finished(self, event: Finished, so_far: Delta | None) -> Delta | None:
        choice = self._choices[event.choice]
        if choice.done:
            return None
        if event.reason is FinishReason.ERROR:
            raise broken_off(event)
        if event.reason is FinishReason.ABORT:
            raise unavailable(event.message or "the request was cancelled by the server", "cancelled")
        delta = so_far or Delta(event.choice, "")
        rest = choice.text.finish()
        delta.text += rest.text
        if self._logprobs:
            delta.spelled = [*delta.spelled, *choice.pending[: rest.num_spelled]]
        token = event.stop_token
        stop = token if token is not None and token not in self._eos else None
        self._end(choice, delta, "stop" if rest.stop else event.reason.value, rest.stop or stop)
        return delta

    def _end(self, choice: _Choice, delta: Delta, reason: str, stop: str | int | None) -> None:
        choice.done = True
        self._open -= 1
        delta.finish = reason
        delta.stop = stop


def _joined(before: Delta | None, delta: Delta) -> Delta:
    """Two deltas of a choice as one."""
    if before is None or before is delta:
        return delta
    delta.text = before.text + delta.text
    delta.spelled = [*before.spelled, *delta.spelled]
    delta.token_ids = [*before.token_ids, *delta.token_ids]
    return delta
