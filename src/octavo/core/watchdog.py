"""Watchdog: plans that advance nothing while something waits are counted, and told with the reason."""

from collections.abc import Mapping

from octavo.core.events import Stalled
from octavo.core.types import Load

PATIENCE = 4
"""So many empty plans in a row are told for the first time; then each time that their number has doubled."""


class Watchdog:
    """Counts plans in a row that have no work though something waits or runs. By law there are none."""

    __slots__ = ("num_stalled",)

    def __init__(self) -> None:
        self.num_stalled = 0

    def advanced(self) -> None:
        """A plan has work."""
        self.num_stalled = 0

    def stalled(self, load: Load, reasons: Mapping[str, int], now: float) -> Stalled | None:
        """A plan has none. The event, where it is time to say so."""
        self.num_stalled += 1
        rounds, rest = divmod(self.num_stalled, PATIENCE)
        if rest or rounds & (rounds - 1):
            return None
        free = load.blocks_blank + load.blocks_cached
        waiting = ", ".join(f"{count} for {reason}" for reason, count in reasons.items()) or "none"
        message = (
            f"{self.num_stalled} plans in a row have no work: {load.num_running} choices run, {load.num_waiting} wait "
            f"({waiting}), {free} blocks are free, {load.blocks_reserved} of them reserved"
        )
        return Stalled(now, self.num_stalled, dict(reasons), message)
