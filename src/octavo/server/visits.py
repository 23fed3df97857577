"""Visits: HTTP requests as numbers, by route, method and status; and errors by their code."""

from collections import Counter

from octavo.server.histogram import LONG_S, Histogram
from octavo.server.openai.errors import ApiError

CLIENT_GONE = 499
"""The status, as proxies write it, of a request whose client went away before its answer began."""
NO_ROUTE = "none"
"""The route of what is not there."""


class Visits:
    """Routes are those of the app's table, so that no client can make a label."""

    def __init__(self) -> None:
        self.answers = Counter[tuple[str, str, int]]()
        """(route, method, status) -> how many."""
        self.errors = Counter[tuple[str, int]]()
        """(code, status) of answers that are errors -> how many."""
        self.durations: dict[tuple[str, str], Histogram] = {}
        """(route, method) -> from the head of a request to the end of its answer."""

    def ended(self, route: str, method: str, status: int, seconds: float) -> None:
        """A request is over; `status` 0: nobody was there to be answered."""
        self.answers[route, method, status or CLIENT_GONE] += 1
        duration = self.durations.get((route, method))
        if duration is None:
            duration = self.durations[route, method] = Histogram(LONG_S)
        duration.observe(seconds)

    def failed(self, error: ApiError) -> None:
        """An answer, or the end of a stream, was this error; or bytes that never became a request were answered so."""
        self.errors[error.code or "none", error.status] += 1
