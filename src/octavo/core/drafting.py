"""Drafting: who guesses how far ahead in a step, and what became of it. How, and whether it pays, is in drafts.py."""

from collections.abc import Sequence

from octavo.core.budget import StepBudget
from octavo.core.choice import Choice
from octavo.core.drafts import Hopes, NgramIndex, Pace, num_foreseen
from octavo.core.plan import ScoredToken, WorkResult
from octavo.core.types import Limits, Speculation


class Drafting:
    """Extends decodes by guesses, keeps what they foresaw, and leaves it where they cost more than they bring."""

    def __init__(self, speculation: Speculation, limits: Limits) -> None:
        self._speculation = speculation
        self._longest = limits.longest_chunk
        self._paces: dict[int, Pace] = {}
        self._began = 0.0
        self._num_seqs = self._num_drafted = self._num_accepted = 0

    def extend(self, decodes: Sequence[Choice], budget: StepBudget, spare_blocks: int, now: float) -> None:
        """Grants guesses to decodes of a step in the making, out of tokens and blocks that nobody else asked for."""
        self._began, self._num_seqs = now, len(decodes)
        self._num_drafted = self._num_accepted = 0
        if not decodes or not self._pace().drafts_pay():
            return
        for choice in decodes:
            draft = self._draft(choice, budget.tokens)
            missing = choice.lease.num_missing(len(draft))
            if draft and missing <= spare_blocks and choice.lease.append_slots(len(draft)) is not None:
                choice.draft = draft
                choice.granted += len(draft)
                budget.tokens -= len(draft)
                spare_blocks -= missing
                self._num_drafted += len(draft)

    def _draft(self, choice: Choice, num_tokens: int) -> tuple[int, ...]:
        """Guesses for one choice: not beyond its end, where nothing would be stored for them."""
        most = min(self._speculation.num_speculative_tokens, num_tokens, self._longest - 1)
        most = min(most, choice.max_len - 1 - len(choice.tokens))
        if most < 1 or not choice.may_draft:
            return ()
        if choice.hopes is None:
            spec = self._speculation
            choice.hopes = Hopes(NgramIndex(spec.prompt_lookup_min, spec.prompt_lookup_max))
        return choice.hopes.draft(choice.tokens, most)

    def keep(self, choice: Choice, outcome: WorkResult) -> tuple[ScoredToken, ...]:
        """As many drawn tokens as the guesses foresaw, and one more; or fewer, where one of them is its last.

        Nothing where a draw failed: it may be one that would never have come, so the step is done again, alone.
        """
        draft, choice.draft = choice.draft, ()
        right = 0 if outcome.error else num_foreseen(draft, [each.token for each in outcome.sampled])
        self._num_accepted += right
        if choice.hopes is not None:
            choice.hopes.learn(right)
        return () if outcome.error else choice.take_drawn(outcome.sampled[: right + 1])

    def end(self, num_tokens: int, now: float) -> None:
        """A step that computed `num_tokens` is over. One that also computed prompts tells nothing about pace."""
        if self._num_seqs and num_tokens == self._num_seqs + self._num_drafted and now > self._began:
            num_generated = self._num_seqs + self._num_accepted
            self._pace().learn(self._num_drafted > 0, now - self._began, num_generated)

    def _pace(self) -> Pace:
        """Of steps with about as many sequences."""
        return self._paces.setdefault(self._num_seqs.bit_length(), Pace())
