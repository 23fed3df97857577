"""Movements: what the tiers below the KV caches of all engines did, one after the other; and how the last one is."""

from octavo.core.events import Tiered

_COUNTS = ("stores", "store_failures", "skipped", "loads", "load_failures", "evictions")
"""What a tier counts since its engine began, in blocks."""


class Movements:
    """Counts never go down: a tier that begins anew begins at 0, and adds to those before."""

    def __init__(self) -> None:
        self.last: Tiered | None = None
        """How the tier is, where there is one."""
        self.blocks: dict[str, int] = dict.fromkeys(_COUNTS, 0)
        self.bytes = {"store": 0, "load": 0}

    def note(self, event: Tiered) -> None:
        before = self.last
        more = {name: getattr(event, name) - (getattr(before, name) if before else 0) for name in _COUNTS}
        for name, count in more.items():
            self.blocks[name] += count
        self.bytes["store"] += more["stores"] * event.block_bytes
        self.bytes["load"] += more["loads"] * event.block_bytes
        self.last = event

    def lost(self) -> None:
        """Its engine is gone."""
        self.last = None
