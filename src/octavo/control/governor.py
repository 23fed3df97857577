"""Governor: watches an engine's events, and says between steps how far it must be throttled to meet its objectives."""

from collections.abc import Sequence

from octavo.config.schema import SloConfig
from octavo.control.latencies import Latencies
from octavo.control.slo import HIGH, LEAST_OVER, Bounds, Decision, Objectives, Reading, State, decide, rested
from octavo.control.window import Window
from octavo.core.events import Event, Steered, Stepped
from octavo.core.types import Limits

EVERY_STEPS = 20
"""So often is decided; and at once where so many steps were too long that this cannot be chance. A change shows in the
next step: all that is measured from there on is measured under it."""
LEAST_FIRSTS = 20
"""Fewer first tokens say nothing yet."""
FULL_STEPS = 50
"""So many of the last full steps are remembered."""
TAIL = 0.99
NEARLY_ALL = 0.9


def governor_for(slo: SloConfig, limits: Limits) -> "Governor | None":
    """The one of an engine with these limits; None where it has no objective."""
    if slo.slo_itl_ms is None and slo.slo_ttft_ms is None:
        return None
    aims = Objectives(itl_s=_seconds(slo.slo_itl_ms), ttft_s=_seconds(slo.slo_ttft_ms))
    return Governor(aims, Bounds(limits.max_num_batched_tokens, limits.max_num_seqs, limits.block_size))


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


class Governor:
    """The state of the law in slo.py, and what is measured for it. Knows the time from events only."""

    def __init__(self, aims: Objectives, bounds: Bounds) -> None:
        self._aims = aims
        self._bounds = bounds
        self._state = State(bounds.open)
        self._latencies = Latencies()
        self._last_s: float | None = None
        self._full = Window(FULL_STEPS)
        self._num_steps = self._num_over = self._over_tokens = self._over_decodes = 0
        self._seqs_bound = False

    def __call__(self, events: Sequence[Event]) -> Steered | None:
        """Takes note of what happened; returns a decision where one is due, whether it changes anything or not."""
        self._latencies.note(events)
        stepped = next((event for event in reversed(events) if type(event) is Stepped), None)
        if stepped is None or not stepped.num_tokens:
            return None
        took_s = 0.0 if self._last_s is None else stepped.time_s - self._last_s
        self._last_s = stepped.time_s
        rest = rested(self._bounds, self._state, took_s)
        if rest is not None:
            return self._change(stepped.time_s, *rest)
        if not self._latencies.num_next or not self._is_due_after(stepped, took_s):
            return None
        return self._change(stepped.time_s, *decide(self._aims, self._bounds, self._state, self._reading(stepped)))

    def _is_due_after(self, stepped: Stepped, took_s: float) -> bool:
        """Takes note of a step in which somebody waited for a next token: of others no objective speaks."""
        throttle = self._state.throttle
        if stepped.num_running > throttle.num_seqs:
            self._begin()  # more run than soon will: what is measured now says nothing of then
        self._num_steps += 1
        over = self._aims.itl_s is not None and self._latencies.longest_s > HIGH * self._aims.itl_s
        if over:
            self._num_over += 1
            self._over_tokens = max(self._over_tokens, stepped.num_tokens)
            self._over_decodes = max(self._over_decodes, self._latencies.num_next)
        if stepped.num_tokens >= throttle.num_tokens:
            self._full.add(took_s)
        self._seqs_bound |= "seqs" in stepped.waiting
        return self._num_steps % EVERY_STEPS == 0 or (over and self._num_over % LEAST_OVER == 0)

    def _reading(self, stepped: Stepped) -> Reading:
        itl, ttft = self._latencies.itl, self._latencies.ttft
        return Reading(
            num_steps=self._num_steps,
            num_over=self._num_over,
            itl_s=itl.quantile(TAIL),
            ttft_s=ttft.quantile(TAIL) if ttft.weight >= LEAST_FIRSTS else None,
            num_running=stepped.num_running,
            over_tokens=self._over_tokens,
            over_decodes=self._over_decodes,
            full_s=self._full.quantile(NEARLY_ALL),
            seqs_bound=self._seqs_bound,
        )

    def _change(self, time_s: float, state: State, decision: Decision) -> Steered:
        latencies = self._latencies
        measured = (latencies.itl.quantile(TAIL), latencies.ttft.quantile(TAIL), self._aims.itl_s, self._aims.ttft_s)
        self._seqs_bound = False
        if state.throttle != self._state.throttle:
            self._begin()
        self._state = state
        throttle = (state.throttle.num_tokens, state.throttle.num_seqs)
        return Steered(time_s, decision.reason, decision.message, *throttle, *measured)

    def _begin(self) -> None:
        """What was measured so far was measured under another throttle."""
        self._latencies.itl.clear()
        self._full.clear()
        self._num_steps = self._num_over = self._over_tokens = self._over_decodes = 0
        self._seqs_bound = False
