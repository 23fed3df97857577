"""Endings: how choices and whole requests end, in whatever state they are, and what becomes of what they held."""

from octavo.core.allocation import Reservations
from octavo.core.cache import KvCache
from octavo.core.choice import Choice
from octavo.core.events import Event, Finished
from octavo.core.reception import Reception
from octavo.core.roster import Roster
from octavo.core.types import FinishReason, RequestId, TokenId


class Endings:
    """Ends choices and tells of each, in the events of its scheduler. The roster sweeps them out later."""

    __slots__ = ("_cache", "_events", "_reception", "_reservations", "_roster")

    def __init__(
        self, roster: Roster, cache: KvCache, reservations: Reservations, reception: Reception, events: list[Event]
    ) -> None:
        """`events` is appended to; whoever gave it empties it."""
        self._roster = roster
        self._cache = cache
        self._reservations = reservations
        self._reception = reception
        self._events = events

    def end_request(
        self,
        request_id: RequestId,
        reason: FinishReason,
        now: float,
        message: str | None = None,
        code: str | None = None,
    ) -> None:
        """Ends all choices of a request that are not over; of one that nobody knows there are none."""
        choices = self._roster.unfinished(request_id)
        beams = choices[0].beams if choices else None
        for number in [choice.index for choice in choices] if beams is None else beams.numbers:
            self._events.append(Finished(request_id, number, now, reason, None, message, code))
        for choice in choices:
            self.drop(choice)

    def end_choice(self, request_id: RequestId, index: int, now: float) -> None:
        """Aborts one choice, or one result of a beam search; the others go on as they would. Without it, nothing."""
        choices = self._roster.unfinished(request_id)
        beams = choices[0].beams if choices else None
        if beams is not None and beams.numbers == [index]:
            self.end_request(request_id, FinishReason.ABORT, now)
            return
        if beams is not None:
            self._events += beams.withdraw(index, now)
            return
        ending = next((choice for choice in choices if choice.index == index), None)
        if ending is not None:
            leader = next((choice for choice in self._roster.requests[request_id] if choice.width > 1), None)
            heir = None if leader is None else self._leave(leader, index)
            self.finish(heir or ending, FinishReason.ABORT, now)

    def finish(self, choice: Choice, reason: FinishReason, now: float, *, stop_token: TokenId | None = None) -> None:
        """A choice has come to its own end."""
        self._events.append(Finished(choice.request_id, choice.index, now, reason, stop_token))
        self.drop(choice)

    def drop(self, choice: Choice) -> None:
        """A choice is over, and what it held is free. Nothing is told."""
        choice.granted = 0
        self._cache.let_go(choice)
        self._reception.learn(choice)
        self._roster.finish(choice)
        if choice.request_id not in self._roster.requests:
            self._cache.forget_own(choice.request_id)

    def _leave(self, leader: Choice, index: int) -> Choice | None:
        """Choice `index` gets no token of the common prompt. Where it is the one that computes it, the next does.

        Returns the choice that took its number, where one did.
        """
        leader.draw_for(tuple([other for other in leader.draws_for if other != index]))
        self._reservations.keep(leader)
        return self._roster.pass_on(leader, leader.draws_for[0]) if leader.index == index else None
