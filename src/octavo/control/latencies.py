"""Latencies: how long clients wait for first and next tokens, from an engine's events."""

from collections import Counter
from collections.abc import Sequence

from octavo.control.window import Window
from octavo.core.events import Event, Finished, Generated, Queued
from octavo.core.types import RequestId

GAPS = 400
"""Inter-token latencies that are remembered. One stands for all choices of a step that waited equally long."""
FIRSTS = 200
"""First tokens that are."""


class _Course:
    """A request that is not over."""

    __slots__ = ("arrival_s", "choices_left", "last_s")

    def __init__(self, queued: Queued) -> None:
        self.arrival_s = queued.came_s
        self.choices_left = queued.num_choices
        self.last_s: dict[int, float] = {}
        """Choice -> the time of its last token."""


class Latencies:
    """The windows of both latencies, as the metrics define them. Each event costs a look-up or two."""

    def __init__(self) -> None:
        self.itl = Window(GAPS)
        """Between two tokens of a choice; where a step gave several, their share of it."""
        self.ttft = Window(FIRSTS)
        """From the arrival of a request to its first token."""
        self.longest_s = 0.0
        """Of the inter-token latencies that were last noted; 0 where there were none among them."""
        self.num_next = 0
        """How many choices got a next token then."""
        self._courses: dict[RequestId, _Course] = {}

    @property
    def num_followed(self) -> int:
        return len(self._courses)

    def note(self, events: Sequence[Event]) -> None:
        gaps, self.num_next = Counter[float](), 0
        for event in events:
            if type(event) is Generated:
                self._generated(event, gaps)
            elif type(event) is Queued:
                self._courses[event.request_id] = _Course(event)
            elif type(event) is Finished:
                self._finished(event)
        for gap_s, count in gaps.items():
            self.itl.add(gap_s, count)
        self.longest_s = max(gaps, default=0.0)

    def _generated(self, event: Generated, gaps: Counter[float]) -> None:
        course = self._courses.get(event.request_id)
        if course is None:
            return
        before_s = course.last_s.get(event.choice)
        if before_s is not None:
            count = len(event.tokens)
            gaps[(event.time_s - before_s) / count] += count
            self.num_next += 1
        elif not course.last_s:
            self.ttft.add(event.time_s - course.arrival_s)
        course.last_s[event.choice] = event.time_s

    def _finished(self, event: Finished) -> None:
        course = self._courses.get(event.request_id)
        if course is not None:
            course.choices_left -= 1
            if not course.choices_left:
                del self._courses[event.request_id]
