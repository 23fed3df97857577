"""Reception: is a request taken in? Judged by what it needs, by who is here already, and by how much waits."""

from dataclasses import replace

from octavo.core.backlog import Backlog, DrainRate, Line, Overfull, overfull
from octavo.core.beam_group import BeamGroup
from octavo.core.beams import sampler_params
from octavo.core.budget import Never, Terms, judge, stop_ids_of
from octavo.core.cache import KvCache
from octavo.core.choice import Choice
from octavo.core.events import Queued, Refused
from octavo.core.lengths import AnswerLengths
from octavo.core.policies import Rank
from octavo.core.request import Request
from octavo.core.roster import Roster
from octavo.core.types import Limits


class Reception:
    """Knows how long answers are and how fast a queue drains, from what came before."""

    __slots__ = ("_limits", "_line", "_planned_s", "_rank", "_serial", "drained", "lengths")

    def __init__(self, limits: Limits, rank: Rank) -> None:
        self._limits = limits
        self._rank = rank
        self._serial = 0
        self._planned_s = 0.0
        self._line = Line()
        self.lengths = AnswerLengths()
        self.drained = DrainRate()

    def receive(self, request: Request, roster: Roster, cache: KvCache, most_seqs: int) -> Terms | Never | Overfull:
        """The terms on which it may enter the queue, or why it may not: for good, or for now. Changes nothing.

        `most_seqs` choices may run now.
        """
        if request.request_id in roster.requests:
            return Never("duplicate_id", f"a request with the id {request.request_id!r} is still live")
        terms = judge(request, self._limits, cache.pins.num_blocks)
        if isinstance(terms, Never):
            return terms
        expected = self.lengths.expect(terms.max_len - len(request.prompt))
        backlog = self._backlog(request.tenant, roster, cache, most_seqs)
        return overfull(self._limits, backlog, request.demand(expected)) or replace(terms, expected=expected)

    def _backlog(self, tenant: str, roster: Roster, cache: KvCache, most_seqs: int) -> Backlog:
        """A token takes a slot in each group of layers; a window may make that fewer, which is left aside."""
        free_slots = max(0, cache.pool.num_unpromised) * self._limits.block_size
        demands = roster.demands
        return Backlog(
            total=demands.total,
            own=demands.of(tenant),
            num_tenants=demands.num_tenants(tenant),
            free_seqs=most_seqs - roster.num_seqs,
            free_tokens=free_slots // cache.groups.num_groups,
        )

    def refuse(self, request: Request, why: Never | Overfull, now: float) -> Refused:
        """The event that says it. Who is refused for now gets a place in the line of those who may come back."""
        after_s = None
        if isinstance(why, Overfull):
            rate = self.drained.tokens_per_s
            after_s = self._line.join(request.tenant, why.num_before, why.num_wanted, rate, now)
        return Refused(request.request_id, now, why.code, why.message, after_s)

    def choices_of(self, request: Request, terms: Terms, cache: KvCache) -> tuple[Choice, ...]:
        """The choices of a request that is taken in: the first waits, the others follow it."""
        stop_ids = stop_ids_of(request.params, self._limits)
        params = sampler_params(request.params, len(stop_ids))
        most = terms.max_len - len(request.prompt)
        beams = BeamGroup(request, most, stop_ids) if params.use_beam_search else None
        self._serial += 1
        choices = tuple(
            Choice(
                request,
                index,
                params,
                rank=self._rank(request),
                serial=self._serial,
                max_len=terms.max_len,
                expected=terms.expected,
                stop_ids=stop_ids,
                lease=cache.new_lease(),
                chain=cache.new_chain(request.namespace),
                beams=beams,
            )
            for index in range(params.width)
        )
        if beams is not None:
            beams.seats = choices
        return choices

    def expected_len(self, choice: Choice) -> int:
        """About how many tokens it will have at its end, as far as is known now."""
        return choice.prompt_len + self.lengths.expect(choice.max_len - choice.prompt_len)

    def began(self, now: float) -> None:
        """A step is being planned."""
        self._planned_s = now

    def ended(self, num_tokens: int, now: float) -> None:
        """A step is over, and computed so many tokens."""
        self.drained.note(num_tokens, now - self._planned_s)

    def learn(self, choice: Choice) -> None:
        """A choice is over: so long answers are."""
        if len(choice.tokens) > choice.prompt_len:
            self.lengths.learn(choice.max_len - choice.prompt_len, len(choice.tokens) - choice.prompt_len)


def queued(request: Request, now: float) -> Queued:
    params, arrival_s = request.params, request.arrival_s or now
    most = None if request.pooling is not None else params.max_tokens
    about = (len(request.prompt), params.num_choices, request.tenant, most, min(arrival_s, now))
    return Queued(request.request_id, now, *about)
