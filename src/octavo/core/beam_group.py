"""BeamGroup: a beam search while it is in the engine: who computes which beam, and what becomes of them round by round.

Beam i of `search.live` is computed by choice `seats[i]`. Once each live beam has its candidates, in one step or in
several, a round is made of them; then the beams are seated anew:

    round      a ------- a+x      a's seat goes on where it is
                  \\----- a+y      the seat of b takes a's past, by reference: its full blocks are shared for good,
               b       (dropped)  its tail until one of the two writes

A beam that has its candidates does nothing until the others have theirs. It may lose its blocks meanwhile, and is not
computed again for that: only if it is among the survivors.
"""

from collections.abc import Sequence

from octavo.core.beams import BeamRules, BeamSearch, Candidates, advance, reseated
from octavo.core.cache import KvCache
from octavo.core.choice import Choice
from octavo.core.events import Event, Finished, Generated
from octavo.core.plan import ScoredToken
from octavo.core.request import ChoiceState, Request
from octavo.core.roster import Roster
from octavo.core.types import FinishReason, TokenId


class BeamGroup:
    """The search of one request. Its choices are seats; what comes out has numbers of its own, best first."""

    __slots__ = ("_request_id", "found", "numbers", "rules", "search", "seats")

    def __init__(self, request: Request, max_tokens: int, stop_ids: frozenset[TokenId]) -> None:
        params = request.params
        self._request_id = request.request_id
        self.rules = BeamRules(
            width=params.width,
            max_tokens=max_tokens,
            stop_ids=stop_ids,
            min_tokens=params.min_tokens,
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
            num_alternatives=params.logprobs or 0,
        )
        self.search = BeamSearch()
        self.seats: Sequence[Choice] = ()
        """All choices of the request; those of the live beams first, in their order."""
        self.found: dict[int, Candidates] = {}
        """Seat's number -> the candidates of its beam, of those that have them in this round."""
        self.numbers = list(range(params.n))
        """The results that somebody waits for."""

    def note(self, seat: Choice, ranked: ScoredToken) -> bool:
        """Takes the candidates of a beam. Does now each live one have its own?"""
        self.found[seat.index] = ranked.alternatives
        return len(self.found) == len(self.search.live)

    def advance(self) -> None:
        """Makes the next round. Where the search is not over then, `seat_beams` is due."""
        candidates = [self.found[seat.index] for seat in self.seats[: len(self.search.live)]]
        self.found.clear()
        self.search = advance(self.search, candidates, self.rules)

    def results(self, now: float) -> list[Event]:
        """What came out of a search that is over."""
        events: list[Event] = []
        for number in self.numbers:
            best = self.search.ended[number]
            reason = FinishReason.LENGTH if best.stop_token is None else FinishReason.STOP
            events.append(Generated(self._request_id, number, now, best.beam.tokens()))
            events.append(Finished(self._request_id, number, now, reason, best.stop_token))
        return events

    def withdraw(self, number: int, now: float) -> list[Event]:
        """Nobody waits for this result any more; the search goes on as it would. Nothing where nobody did."""
        if number not in self.numbers:
            return []
        self.numbers.remove(number)
        return [Finished(self._request_id, number, now, FinishReason.ABORT)]

    def seat_beams(self, roster: Roster, cache: KvCache) -> None:
        """Gives each live beam its seat, its past, and its new token."""
        before, live = self.seats, self.search.live
        self.seats = reseated([beam.source for beam in live], before)
        for seat, beam in zip(self.seats, live, strict=False):
            if seat is not before[beam.source]:
                _take_past(seat, before[beam.source], roster, cache)
        for seat, beam in zip(self.seats, live, strict=False):
            assert beam.token is not None, "only the first beam has none"
            seat.tokens.append(beam.token.token)
            if seat.state is ChoiceState.FOLLOWING:
                roster.queue(seat)
        before[0].draw_for((before[0].index,))


def _take_past(seat: Choice, source: Choice, roster: Roster, cache: KvCache) -> None:
    """`seat` drops its beam and goes on from where `source` is; on its blocks, if it has any."""
    cache.let_go(seat)
    running = source.state is ChoiceState.RUNNING
    if running and seat.state is ChoiceState.FOLLOWING and source.width > 1:  # room was kept for it
        roster.fork(seat, source)
        return
    seat.take_past(source)
    if seat.state is ChoiceState.RUNNING:
        if running:
            seat.share_blocks(source)
        else:
            seat.computed = 0
            roster.preempt(seat)
