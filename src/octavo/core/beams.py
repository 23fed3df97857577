"""Beam search as values: the beams of one prompt, and what each round of candidates makes of them.

It finds the beams that Transformers' `generate(num_beams=..., do_sample=False)` finds. One round:

    live beams        each one's candidates         all of them, best sum first
    a  -0.3           a+x -0.4   a+y -0.9           a+x -0.4     live
    b  -0.5           b+. -0.6   b+z -1.1           b+. -0.6     ended: "." ends an answer
                                                    a+y -0.9     live; with a width of 2 that is enough

A continuation that ends an answer counts only where it is among the first `width`; so a beam that could end is not
lost to worse ones, and there are always `width` live ones to go on with.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import count
from typing import TypeVar

from octavo.core.plan import ScoredToken
from octavo.core.sampling import EarlyStopping, SamplingParams
from octavo.core.types import TokenId

T = TypeVar("T")
Candidates = Sequence[tuple[TokenId, float]]
"""The most likely next tokens of one beam with their logprobs, best first: `num_candidates` of them."""
_Continuation = tuple[float, int, int]
"""Minus the sum of its logprobs, the place of its beam, its own place among that one's candidates. Best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamRules:
    """What a search was asked for."""

    width: int
    max_tokens: int
    """A beam of this length ends, whatever its last token is."""
    stop_ids: frozenset[TokenId] = frozenset()
    min_tokens: int = 0
    """Before this many tokens no beam ends with a stop token: it is passed over."""
    length_penalty: float = 1.0
    """A hypothesis scores its sum of logprobs / its length ** this: higher values favour long ones."""
    early_stopping: EarlyStopping = False
    """When it is over, if no beam reaches `max_tokens`. True: as soon as there are `width` hypotheses. False: as soon
    as the best live beam, scored as if it ended now, is no better than the worst of them. "never": the same, but
    where long ones are favoured it is scored as if its sum stayed as it is up to `max_tokens`: then nothing that is
    still to come could be better."""
    num_alternatives: int = 0
    """Alternatives that the tokens of hypotheses carry: as many as candidates were given, at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Beam:
    """Generated tokens, from the last one back to the first. Beams share their pasts."""

    logprob: float = 0.0
    """The sum of its tokens' logprobs."""
    length: int = 0
    token: ScoredToken | None = None
    past: "Beam | None" = field(default=None, repr=False)
    source: int = 0
    """The place of `past` among the live beams of the round before."""

    def tokens(self) -> tuple[ScoredToken, ...]:
        """First to last."""
        tokens: list[ScoredToken] = []
        beam = self
        while beam.token is not None and beam.past is not None:
            tokens.append(beam.token)
            beam = beam.past
        return tuple(reversed(tokens))


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A beam that ended, by `stop_token` or by its length."""

    beam: Beam
    score: float
    stop_token: TokenId | None = None


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """Where a search is: `BeamSearch()` is its beginning, with one beam that has no tokens."""

    live: tuple[Beam, ...] = (Beam(),)
    """Best first: 1 before the first round, then `width`; none when all have ended."""
    ended: tuple[Hypothesis, ...] = ()
    """The best `width` of all so far, best first; among equals the earlier one."""
    over: bool = False


def num_candidates(width: int, num_stop_ids: int) -> int:
    """How many candidates of each beam decide a round: `width` that go on, behind all that may end."""
    return width + num_stop_ids


def sampler_params(params: SamplingParams, num_stop_ids: int) -> SamplingParams:
    """What the sampler is asked for: candidates for a beam search, logprobs where samples will be ranked by them."""
    if params.use_beam_search:
        most = max(num_candidates(params.width, num_stop_ids), params.logprobs or 0)
        return replace(params, temperature=0.0, logprobs=most)
    if params.ranks_samples and params.logprobs is None:
        return replace(params, logprobs=0)
    return params


def advance(search: BeamSearch, candidates: Sequence[Candidates], rules: BeamRules) -> BeamSearch:
    """The next round: `candidates` are those of each live beam, in their order.

    Among equal sums the earlier beam comes first, then the earlier candidate.
    """
    length = search.live[0].length + 1
    live: list[Beam] = []
    ended: list[Hypothesis] = []
    for place, (cost, source, at) in enumerate(_in_order(search, candidates, rules)):
        token = candidates[source][at][0]
        stops = token in rules.stop_ids
        if (stops or length == rules.max_tokens) and place >= rules.width:
            continue
        past, scored = search.live[source], _scored(candidates[source], at, rules)
        beam = Beam(-cost, length, scored, past, source)
        if stops or length == rules.max_tokens:
            ended.append(Hypothesis(beam, _score(beam.logprob, length, rules), token if stops else None))
        else:
            live.append(beam)
            if len(live) == rules.width:
                break
    best = sorted((*search.ended, *ended), key=lambda hypothesis: -hypothesis.score)[: rules.width]
    return BeamSearch(tuple(live), tuple(best), _is_over(live, best, rules))


def _in_order(search: BeamSearch, candidates: Sequence[Candidates], rules: BeamRules) -> Iterator[_Continuation]:
    continuations = merge(*map(_continuations, count(), search.live, candidates))
    if search.live[0].length >= rules.min_tokens:
        return continuations
    return (each for each in continuations if candidates[each[1]][each[2]][0] not in rules.stop_ids)


def _continuations(source: int, beam: Beam, candidates: Candidates) -> Iterator[_Continuation]:
    for place, (_, logprob) in enumerate(candidates):
        yield -(beam.logprob + logprob), source, place


def _scored(candidates: Candidates, place: int, rules: BeamRules) -> ScoredToken:
    token, logprob = candidates[place]
    rank = 1 + sum([other > logprob for _, other in candidates[:place]])
    return ScoredToken(token, logprob, rank, tuple(candidates[: rules.num_alternatives]))


def _score(logprob: float, length: int, rules: BeamRules) -> float:
    return logprob / length**rules.length_penalty


def _is_over(live: Sequence[Beam], ended: Sequence[Hypothesis], rules: BeamRules) -> bool:
    if not live:
        return True
    if len(ended) < rules.width:
        return False
    if rules.early_stopping is True:
        return True
    longest = rules.early_stopping == "never" and rules.length_penalty > 0
    hoped = _score(live[0].logprob, rules.max_tokens if longest else live[0].length, rules)
    return hoped <= ended[-1].score


def reseated(sources: Sequence[int], seats: Sequence[T]) -> list[T]:
    """Who computes what next: for each live beam the seat of its past, or for a second one with the same past a free
    seat; then the seats that are left over. `seats` are those of the round before, in the order of its live beams.
    """
    kept = set(sources)
    free = [seat for place, seat in enumerate(seats) if place not in kept]
    taken: list[T] = []
    for source in sources:
        taken.append(seats[source] if source in kept else free.pop(0))
        kept.discard(source)
    return taken + free
