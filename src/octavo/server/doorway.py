"""Doorway: how many requests may be inside at once, counted as they arrive, before anything is spent on them."""

from collections.abc import Iterator
from contextlib import contextmanager

from octavo.config.schema import Config
from octavo.core.backlog import Demands, Line, beyond
from octavo.core.request import Request
from octavo.engine.clock import now
from octavo.server.metrics import Meters
from octavo.server.openai.errors import ApiError, unavailable


class Doorway:
    """Counts requests as they come, and their prompts once they are read; sends away at once what is too many.

    The engine counts more exactly, with answers and with blocks, but only between two steps. Here a burst is turned
    away within a millisecond, however long the step in progress takes.
    """

    def __init__(self, config: Config, meters: Meters) -> None:
        queued = config.queue.max_num_queued_reqs
        self._most = config.scheduler.max_num_seqs + queued if queued else None
        self._most_tokens = config.queue.max_num_queued_tokens
        self._block_size = config.cache.block_size
        self._meters = meters
        self._inside = Demands()
        self._unadmitted = Demands()
        self._line = Line()

    @property
    def num_inside(self) -> int:
        return self._inside.total.num_reqs

    @property
    def num_waiting_tokens(self) -> int:
        """Of prompts that the engine has not begun to compute."""
        return self._unadmitted.total.num_tokens

    @contextmanager
    def entered(self, tenant: str) -> Iterator[None]:
        """For the time of one request of this tenant. Raises ApiError 503 where no more of it may come in."""
        if self._most is not None:
            self._check_requests(tenant, self._most)
        self._inside.add(tenant, 0)
        try:
            yield
        finally:
            self._inside.remove(tenant, 0)

    def queue(self, request: Request) -> "Place":
        """Counts a prompt among those that wait for the engine. Raises ApiError 503 where there is no room for it."""
        if self._most_tokens and self._meters.num_blocks:
            self._check_tokens(request.tenant, len(request.prompt))
        return Place(self._unadmitted, request)

    def _check_requests(self, tenant: str, most: int) -> None:
        inside = self._inside
        others = inside.num_tenants(tenant)
        if beyond(most, inside.total.num_reqs, inside.of(tenant).num_reqs, 1, others):
            share = _share(inside.of(tenant).num_reqs, inside.total.num_reqs)
            message = (
                f"{self.num_inside} requests run or wait{share}, and no more may "
                f"(--max-num-seqs, --max-num-queued-reqs)"
            )
            raise self._full(tenant, "queue_full", message, self._meters.mean_request_tokens)

    def _check_tokens(self, tenant: str, more: int) -> None:
        """By the last state that the engine told: what it took in since then is still counted here."""
        limit, waits, free = self._most_tokens, self._unadmitted, self._meters.num_free_blocks * self._block_size
        total, own = waits.total.num_tokens, waits.of(tenant).num_tokens
        if beyond(limit + free, total, own, more, waits.num_tenants(tenant)):
            message = (
                f"prompts of {total} tokens wait{_share(own, total)}; with {more} more that is over the "
                f"{free} that fit into free blocks and the {limit} that may wait beyond those (--max-num-queued-tokens)"
            )
            raise self._full(tenant, "queue_tokens_full", message, max(more, total + more - limit - free))

    def _full(self, tenant: str, code: str, message: str, num_before: float) -> ApiError:
        self._meters.turned_away(code)
        rate, wanted = self._meters.drained.tokens_per_s, self._meters.mean_request_tokens
        after_s = self._line.join(tenant, num_before, wanted, rate, now())
        return unavailable(f"{message}; there should be room in {after_s} s", code, after_s)


def _share(own: int, total: int) -> str:
    """How much of it is this tenant's, where others have some, too."""
    return "" if own == total else f", {own} of them of this tenant"


class Place:
    """A prompt that waits for the engine's first work on it. `leave` says that it does no more; again: nothing."""

    def __init__(self, waits: Demands, request: Request) -> None:
        self._waits: Demands | None = waits
        self._request = request
        waits.add(request.tenant, len(request.prompt))

    def leave(self) -> None:
        if self._waits is not None:
            self._waits.remove(self._request.tenant, len(self._request.prompt))
            self._waits = None
