"""Choice: one continuation of a request, while it is in the engine. Its state moves along the table in request.py."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from octavo.core.budget import Later
from octavo.core.drafts import Hopes
from octavo.core.hashing import KeyChain
from octavo.core.lease import Lease
from octavo.core.plan import BlockCopy, HiddenSum, Sample, ScoredToken, Work, decode, plain_sample
from octavo.core.ports import Guide
from octavo.core.request import ChoiceState, Move, Request, after
from octavo.core.sampling import SamplingParams
from octavo.core.types import Pooling, TokenId

if TYPE_CHECKING:
    from octavo.core.beam_group import BeamGroup

NEVER_ASKED = Later("", 0, 0)


@dataclass(slots=True)
class Wait:
    """What a choice went through in the queue."""

    passed: int = 0
    """Choices behind it that were admitted before it, since it got blocked."""
    preempted_in: int = -1
    """The step that took its lease away; it is not admitted in the same step."""
    num_preempted: int = 0
    """How often its lease was taken away."""
    lacks: Later = NEVER_ASKED
    """What it lacked when it was last asked to start."""
    own: Later | None = None
    """What it alone waits for, as far as `waits.py` keeps its time; these five belong to that module."""
    since: float = 0.0
    asked_in: int = 0
    clocks: dict[str, float] | None = None
    spent: dict[str, tuple[float, int, int]] = field(default_factory=dict[str, tuple[float, int, int]])
    num_settled: int = 0
    """Generated tokens that are in its tenant's counter."""
    pledged: float = 0
    """Service that it may still take at most, in its tenant's worst case."""


class Choice:
    """The tokens of one continuation, and how far its KV has been computed.

        tokens     | prompt ...................... | generated ... | last |
        KV         | computed ........ | granted |                        |
                                         this step

    It needs work until all of `tokens` is computed; the work that reaches the end draws the next token. One choice of
    a request computes the prompt for all of them, at first choice 0: until it has, the others follow it, and it draws
    their first tokens too (`draws_for`). Up to there they differ by nothing but their numbers.

    In a beam search nothing is drawn: the work that reaches the end finds candidates, and `beams` says what is next.
    An embedding draws nothing either: hidden states are added up on the way, and it ends where its prompt does.
    """

    __slots__ = (
        "_banned",
        "_min_tokens",
        "_plain",
        "_pooling",
        "_scores",
        "_seed",
        "beams",
        "chain",
        "claim",
        "computed",
        "copies",
        "demand",
        "draft",
        "draws_for",
        "expected_len",
        "granted",
        "guide",
        "hopes",
        "index",
        "lease",
        "max_len",
        "next_full",
        "noted",
        "order",
        "params",
        "prompt_len",
        "rank",
        "request",
        "request_id",
        "state",
        "stop_ids",
        "tokens",
        "total",
        "wait",
        "width",
    )

    def __init__(
        self,
        request: Request,
        index: int,
        params: SamplingParams,
        *,
        rank: int,
        serial: int,
        max_len: int,
        expected: int,
        stop_ids: frozenset[TokenId],
        lease: Lease,
        chain: KeyChain,
        beams: "BeamGroup | None" = None,
    ) -> None:
        self.request = request
        self.params = params
        """What the sampler is asked: the request's, but for logprobs that rank its choices."""
        self.beams = beams
        self.request_id = request.request_id
        self.index = index
        self.rank = rank
        """Lower ranks go first and may displace higher ones."""
        self.order = (rank, serial, index)
        """Its place in every queue, for its whole life."""
        self.state = _first_state(request, index)
        self.tokens: list[TokenId] = [] if index else list(request.prompt)
        self.prompt_len = len(request.prompt)
        self.max_len = max_len  # it ends when it has this many tokens
        self.expected_len = self.prompt_len + expected
        """About so many tokens it will have at its end."""
        self.demand = request.demand(expected)
        self.stop_ids = stop_ids
        self.guide: Guide | None = None  # keeps it to its form, where it has one; there before its first work
        self.computed = 0
        self.granted = 0
        """Tokens that the plan in flight, or in the making, computes."""
        self.draft: tuple[TokenId, ...] = ()  # guesses behind the last token that this step checks: granted too
        self.hopes: Hopes | None = None  # where its guesses come from, once it guesses
        self.copies: tuple[BlockCopy, ...] = ()  # that this work needs first
        self.lease = lease
        self.chain = chain
        self.claim: bytes | None = None
        """The key of the block that this choice is computing, where it is known before it is full."""
        self.next_full = 0
        """At this many computed tokens the next block is full."""
        self.draws_for: tuple[int, ...] = (index,) if index or beams else tuple(range(params.width))
        """The numbers of the choices that its next token is drawn for: its own, and those that follow it."""
        self.width = 1 if index else params.width
        """Choices that it stands for: itself, and those that follow it."""
        self.noted = _num_unasked(request)
        """So many prompt positions owe nothing any more: their logprob, or hidden state, is known or was not wanted."""
        self.total = b""  # of an embedding: the sum of the hidden states that were noted
        self.wait = Wait()
        self._seed = request.seed
        self._pooling = request.pooling is not None
        self._scores = params.prompt_logprobs is not None
        self._plain = not params.penalised and params.structured_outputs is None
        self._min_tokens = params.min_tokens
        self._banned = tuple(sorted(stop_ids))

    def move(self, move: Move) -> None:
        """Takes a step in its life; raises IllegalTransition where the life cycle has no such step."""
        self.state = after(self.state, move)

    @property
    def num_left(self) -> int:
        """Known tokens whose KV is still to be computed."""
        return len(self.tokens) - self.computed

    @property
    def awaits_others(self) -> bool:
        """Has it computed all that it knows? A beam does nothing until those beside it have."""
        return self.computed == len(self.tokens)

    @property
    def owes_positions(self) -> bool:
        """Does it owe logprobs, or hidden states, of prompt positions before the last? Those must be computed, not hit.

        (The last token of a sequence always is.)
        """
        return self.noted < self.prompt_len - 1

    def chunk_limit(self) -> int:
        """How many tokens the next work may have: all that are left, or up to where scoring goes on after a preemption.

        A work scores all of its positions or none.
        """
        again = self.noted - self.computed
        return again if again > 0 and self._scores and self.owes_positions else self.num_left

    def work(self) -> Work:
        """The work for the tokens that were granted."""
        start, tokens = self.computed, self.tokens
        end = start + self.granted
        if self._pooling:
            return self._add_up(start, end)
        if end == len(tokens) and self.granted == self.width == 1:  # a decode: nearly every work, so nothing in its way
            samples = (self._sample(self.index),)
            return decode(self.request_id, self.index, start, (tokens[start],), self.lease.table, samples)
        if self.draft:
            return self._check_draft()
        chunk = tuple(tokens[start:end])
        drawn = self.draws_for if end == len(tokens) else ()
        samples = tuple([self._sample(index) for index in drawn])
        if not self._scores:
            return Work(self.request_id, self.index, start, chunk, self.lease.table, samples)
        targets = self._targets(start, end)
        alternatives = self.params.prompt_logprobs or 0 if targets else 0
        return Work(self.request_id, self.index, start, chunk, self.lease.table, samples, targets, alternatives)

    def _check_draft(self) -> Work:
        draft, start = self.draft, self.computed
        samples = tuple([self._sample(self.index, draft[:i]) for i in range(len(draft) + 1)])
        chunk = (self.tokens[start], *draft)
        return Work(self.request_id, self.index, start, chunk, self.lease.table, samples, num_drafted=len(draft))

    def _add_up(self, start: int, end: int) -> Work:
        """The work of an embedding. After a preemption some of its hidden states are in the sum already."""
        chunk = tuple(self.tokens[start:end])
        asked = HiddenSum(max(0, self.noted - start), self.total) if end > self.noted else None
        return Work(self.request_id, self.index, start, chunk, self.lease.table, hidden_sum=asked)

    @property
    def num_summed(self) -> int:
        """Hidden states that its embedding is the mean of."""
        return 1 if self.request.pooling is Pooling.LAST else self.prompt_len

    def take_drawn(self, drawn: tuple[ScoredToken, ...]) -> tuple[ScoredToken, ...]:
        """Knows these tokens now, or those up to its last one, as if each had had a step of its own; returns them."""
        for count, each in enumerate(drawn, 1):
            self.tokens.append(each.token)
            self.computed += 1
            if each.token in self.stop_ids or len(self.tokens) >= self.max_len:
                return drawn[:count]
        return drawn

    def draw_for(self, indices: tuple[int, ...]) -> None:
        """From now on it has these choices to draw for: itself, and those that still follow it."""
        self.draws_for = indices
        self.width = len(indices)

    def swap_numbers(self, other: "Choice") -> None:
        """Each becomes the other one. `other` follows this choice: up to the fork nothing else tells them apart."""
        self.index, other.index = other.index, self.index
        self.order, other.order = other.order, self.order
        other.draw_for((other.index,))

    def forked(self, choice: "Choice") -> None:
        """Takes over the computed prompt of `choice`: its tokens, its blocks, by reference, and its keys."""
        self.move(Move.FORK)
        self.take_past(choice)
        self.share_blocks(choice)

    def take_past(self, choice: "Choice") -> None:
        """Knows what `choice` knows: its tokens, their keys, and what may follow them."""
        self.tokens = choice.tokens.copy()
        self.chain = choice.chain.fork()
        self.noted = choice.noted
        self.guide = None if choice.guide is None else choice.guide.fork()

    def share_blocks(self, choice: "Choice") -> None:
        """Has computed what `choice` has, whose past it knows: on the same blocks, by reference."""
        self.lease = choice.lease.fork()
        self.computed = choice.computed
        self.next_full = choice.next_full

    @property
    def may_draft(self) -> bool:
        """Is it one that a guess may run ahead of? A form or a search would have to follow every guess."""
        return self.width == 1 and self.guide is None and self.beams is None and not self._pooling

    def _sample(self, index: int, ahead: tuple[TokenId, ...] = ()) -> Sample:
        """The next draw; or, behind guesses `ahead`, the one that follows where they are right."""
        num_generated = len(self.tokens) - self.prompt_len + len(ahead)
        early = num_generated < self._min_tokens
        banned = self._banned if early else ()
        if self.params.bad_words_token_ids:
            banned = (*banned, *self._last_of_bad(ahead))
        if self._plain:
            return plain_sample(self.params, self._seed, index, num_generated, banned)
        prompt = self.request.prompt if self.params.repetition_penalty != 1 else ()
        generated = (*self.tokens[self.prompt_len :], *ahead) if self.params.penalised else ()
        mask = None if self.guide is None else self.guide.mask(() if early else self._banned)
        return Sample(self.params, self._seed, index, num_generated, banned, prompt, generated, mask)

    def _last_of_bad(self, ahead: tuple[TokenId, ...]) -> list[TokenId]:
        """The last ids of bad words whose others were just generated."""
        words = self.params.bad_words_token_ids
        longest = max(map(len, words))
        tail = (*self.tokens[max(self.prompt_len, len(self.tokens) - longest) :], *ahead)
        return [ids[-1] for ids in words if len(ids) == 1 or tail[1 - len(ids) :] == ids[:-1]]

    def _targets(self, start: int, end: int) -> tuple[TokenId, ...]:
        """The prompt tokens that the logits of this chunk are to be asked for: none of them a second time."""
        if start < self.noted:
            return ()
        return tuple(self.tokens[start + 1 : min(end + 1, self.prompt_len)])


def _first_state(request: Request, index: int) -> ChoiceState:
    if index:
        return ChoiceState.FOLLOWING
    return ChoiceState.WAITING if request.params.structured_outputs is None else ChoiceState.HELD


def _num_unasked(request: Request) -> int:
    """Prompt positions, from the first on, of which nothing is wanted but that what follows can read their KV."""
    if request.pooling is Pooling.LAST:
        return len(request.prompt) - 1
    asked = request.pooling is Pooling.MEAN or request.params.prompt_logprobs is not None
    return 0 if asked else len(request.prompt)
