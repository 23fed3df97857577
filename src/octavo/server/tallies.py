"""Tallies: what each tenant had, for so many tenants that a metrics store can bear it, and for all others together."""

from collections import Counter
from collections.abc import Iterator

MOST_NAMED = 50
"""Tenants with a label of their own: those that came first. A label that goes and comes again breaks counters."""
OTHERS = "other"
NAMELESS = "default"
"""The label of requests that name no tenant."""


class Tally:
    """What one tenant had."""

    __slots__ = (
        "cached_tokens",
        "generation_tokens",
        "missed_tokens",
        "num_live",
        "num_requests",
        "over_quota",
        "prompt_tokens",
    )

    def __init__(self) -> None:
        self.num_requests = 0
        self.num_live = 0
        """Requests that run or wait in the engine."""
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.missed_tokens = Counter[str]()
        """Reason -> prompt tokens that were not found in the prefix cache."""
        self.over_quota = Counter[str]()
        """Quota -> requests that it did not allow."""


class Tallies:
    """A tally for each tenant that was ever seen."""

    def __init__(self) -> None:
        self._tallies: dict[str, Tally] = {NAMELESS: Tally()}

    def of(self, tenant: str) -> Tally:
        """Its own tally, or the one of all those that came too late for one."""
        label = tenant or NAMELESS
        if label not in self._tallies and len(self._tallies) > MOST_NAMED:
            label = OTHERS
        return self._tallies.setdefault(label, Tally())

    def items(self) -> Iterator[tuple[str, Tally]]:
        """Labels and tallies, in the order of their coming."""
        yield from self._tallies.items()
