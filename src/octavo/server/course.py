"""Course: what happened to one request, and when, for as long as it is not over."""

from collections import Counter

from octavo.core.events import Queued
from octavo.server.tallies import Tally


class Course:
    """Times are the engine's; a choice is followed until it has finished."""

    __slots__ = (
        "admitted_s",
        "arrival_s",
        "cached_tokens",
        "choices_left",
        "first_s",
        "generated",
        "last_s",
        "loaded_tokens",
        "longest",
        "max_tokens",
        "num_choices",
        "preempted",
        "prompt_len",
        "tally",
    )

    def __init__(self, queued: Queued, tally: Tally) -> None:
        self.tally = tally
        self.arrival_s = queued.came_s
        self.prompt_len = queued.prompt_len
        self.num_choices = self.choices_left = queued.num_choices
        self.max_tokens = queued.max_tokens
        self.cached_tokens = 0
        """Tokens of the prompt that were found in the KV cache, or in the tier below it."""
        self.loaded_tokens = 0
        """Those of them that were in the tier."""
        self.admitted_s: float | None = None
        self.first_s: float | None = None
        self.last_s: dict[int, float] = {}
        """Choice -> the time of its last token."""
        self.generated: dict[int, int] = {}
        """Choice -> its tokens so far. Of those that go on."""
        self.longest = 0
        """Tokens of the longest choice that has finished."""
        self.preempted = Counter[int]()
        """Choice -> how often."""

    def unfinished(self) -> list[int]:
        """The choices that are left; which numbers those have that never had a token, nobody can tell."""
        known = list(self.generated)
        return [*known, *[-1] * (self.choices_left - len(known))]
