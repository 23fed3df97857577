"""Allocation: which room a newcomer must find, and which room is kept for those who run. Two policies over one pool.

    v1   greedy: room for the first chunk, and nothing is kept. Blocks go to whoever is first to need them.
    v2   room for the prompt and the expected answer, and what of that is not taken yet is kept: reserved.

A reservation is a count of free blocks, never a block, and binds newcomers only: a running choice takes any free block,
so all that is reserved is taken before anybody is preempted. What a newcomer may have, in blocks:

    free | reserved for those who run | watermark | for newcomers |
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from octavo.core.cache import Hit, KvCache
from octavo.core.choice import Choice
from octavo.core.request import ChoiceState


@dataclass(frozen=True, slots=True)
class Allocation:
    """One policy. Both functions count slots: places of one token each, from the first one of the sequence on."""

    asks: Callable[[Choice, int], int]
    """Slots that must fit for a waiting choice to start with a first chunk of so many tokens."""
    keeps: Callable[[Choice], int]
    """Slots that are kept for it from then on, those in use included."""


def _first_chunk(choice: Choice, chunk: int) -> int:
    """One that lost its blocks before asks for all that it knows: else it would come back only to lose them again."""
    return len(choice.tokens) if choice.wait.num_preempted else choice.computed + chunk


def _all_that_is_expected(choice: Choice, chunk: int = 0) -> int:
    """The last token of an answer is drawn and never stored."""
    return max(len(choice.tokens), choice.expected_len - 1)


def _nothing(choice: Choice) -> int:
    return 0


ALLOCATIONS: Mapping[str, Allocation] = {
    "v1": Allocation(asks=_first_chunk, keeps=_nothing),
    "v2": Allocation(asks=_all_that_is_expected, keeps=_all_that_is_expected),
}
"""`--block-manager`"""


class Reservations:
    """What newcomers must find, and what is kept for those who run: in blocks, by one of the policies."""

    __slots__ = ("_cache", "_policy")

    def __init__(self, policy: Allocation, cache: KvCache) -> None:
        self._policy = policy
        self._cache = cache

    def num_blocks_asked(self, choice: Choice, hit: Hit, chunk: int, *, alone: bool) -> int:
        """Free blocks that a waiting choice must find. One that is alone needs no room for what may come later."""
        num_slots = len(choice.tokens) if alone else self._policy.asks(choice, chunk)
        return self._cache.num_blocks_needed(choice, hit, num_slots) + self._num_of_followers(choice, num_slots)

    def keep(self, *choices: Choice) -> None:
        """Reserves for those that run what they, and those that follow them, will need beyond the slots in use."""
        for choice in choices:
            if choice.state is ChoiceState.RUNNING:
                choice.lease.reserve(self._num_to_come(choice))

    def renew(self, choice: Choice) -> None:
        """A window gave blocks back, and will take as many again: they are kept too, where anything still is."""
        if choice.lease.num_reserved:
            self.keep(choice)

    def _num_to_come(self, choice: Choice) -> int:
        num_slots, in_use = self._policy.keeps(choice), choice.lease.num_slots
        num_to_come, num_left = num_slots - in_use, len(choice.tokens) - in_use
        own = choice.lease.num_to_come(num_to_come, num_left) if num_to_come > 0 else 0
        return own + self._num_of_followers(choice, num_slots)

    def reclaim(self, choices: Sequence[Choice]) -> bool:
        """Nothing is kept for these any more. Was anything?"""
        kept = [choice for choice in choices if choice.lease.num_reserved]
        for choice in kept:
            choice.lease.reserve(0)
        return bool(kept)

    def _num_of_followers(self, choice: Choice, num_slots: int) -> int:
        """Blocks that those who follow it will take for their answers: their prompt is shared."""
        if choice.width == 1:
            return 0
        groups = self._cache.groups
        own = max(0, groups.blocks_for(num_slots) - groups.blocks_for(choice.prompt_len))
        each = sum([min(own, groups.most_held(window, num_slots, 1)) for window in groups.windows])
        return (choice.width - 1) * each


def supply(choices: Sequence[Choice], resource: str) -> int:
    """What these running choices would give back together: slots of the step, or blocks; of all else nothing."""
    if resource == "seqs":
        return sum([choice.width for choice in choices])
    return sum([c.lease.num_blocks + c.lease.num_reserved for c in choices]) if resource == "blocks" else 0


def need_of(choice: Choice, num_tokens: int, num_free: int) -> str:
    """Why another one has to give up its blocks, for people."""
    num_blocks = choice.lease.num_missing(num_tokens)
    return (
        f"request {choice.request_id} needs {num_blocks} blocks for its next {num_tokens} tokens, {num_free} are free"
    )
