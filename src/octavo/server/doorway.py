"""Doorway: how many requests may be inside at once, counted as they arrive, before anything is spent on them."""

from collections.abc import Iterator
from contextlib import contextmanager

from octavo.config.schema import Config
from octavo.core.backlog import retry_after_s
from octavo.server.metrics import Meters
from octavo.server.openai.errors import unavailable


class Doorway:
    """Lets in as many as may run and wait (`--max-num-seqs` and `--max-num-queued-reqs`); sends others away at once.

    The engine counts more exactly, tokens and blocks too, but only between two steps, and after the prompt was
    tokenised. Here a burst is turned away within a millisecond, however long the step in progress takes.
    """

    def __init__(self, config: Config, meters: Meters) -> None:
        queued = config.queue.max_num_queued_reqs
        self._most = config.scheduler.max_num_seqs + queued if queued else None
        self._meters = meters
        self.num_inside = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        """For the time of one request. Raises ApiError 503 where no more may come in."""
        if self._most is not None and self.num_inside >= self._most:
            raise self._full()
        self.num_inside += 1
        try:
            yield
        finally:
            self.num_inside -= 1

    def _full(self) -> Exception:
        self._meters.turned_away("queue_full")
        after_s = retry_after_s(self._meters.mean_request_tokens, self._meters.drained.tokens_per_s)
        message = (
            f"{self.num_inside} requests run or wait, and no more may (--max-num-seqs, --max-num-queued-reqs); "
            f"there should be room in {after_s} s"
        )
        return unavailable(message, "queue_full", after_s)
