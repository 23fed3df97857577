"""The control law of latency objectives: what was measured -> how large steps may be, and how many run in them. Pure.

    p99 of the inter-token latency, in objectives
      above 0.9      cut: to what would give 0.75 in proportion, by half at most
      0.65 .. 0.9    hold: so that noise and small steps cause no swinging
      below          raise, a little at a time, and only what held somebody up

What is held stays clear of the objective: a machine that turns slower is noticed by steps that are too long already.

Tokens of a step are cut first, down to the decodes and one block; then the choices that run. They are raised the other
way round. Before tokens are raised, steps that are as long as they may be must leave room too, be they rare: they would
get longer. Only where first tokens are late, the one latency in a hundred that may be longer is spent, and there is
room below 0.7.
"""

from dataclasses import dataclass, replace

from octavo.core.throttle import Throttle

HIGH, AIM, LOW = 0.9, 0.75, 0.65
"""In objectives: above which there is a cut, what a change aims for, and below which there is room."""
LATE_LOW = 0.7
"""Below which there is room where first tokens are late."""
LEAST_CUT, MOST_CUT = 0.9, 0.5
"""A cut leaves at most, and at least, this share."""
TOKEN_RAISES, SEQ_RAISES = 32, 16
"""So many raises lead from nothing to the limit."""
LEAST_OVER = 3
"""So many steps must have been too long for a cut. Right after a change one alone is more than a hundredth of them."""
RAISE_STEPS = 60
"""A raise needs as many steps to go by; for a cut fewer will do."""
REST_S = 300.0
"""Each time that nothing has run for so long, half of what was cut is forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """What 99 of 100 must not exceed, in seconds. None: no such objective."""

    itl_s: float | None = None
    ttft_s: float | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the limits allow, and the block size: the least that a step computes of a prompt."""

    num_tokens: int
    num_seqs: int
    block_size: int

    @property
    def open(self) -> Throttle:
        """Nothing is throttled."""
        return Throttle(self.num_tokens, self.num_seqs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was measured since the last change."""

    num_steps: int
    """With decodes in them."""
    num_over: int
    """Of these, those that let somebody wait for longer than HIGH."""
    itl_s: float | None
    """The p99 of inter-token latencies; None: not known yet."""
    ttft_s: float | None
    num_running: int
    """Choices, now."""
    over_tokens: int
    """The most that a step had which was too long."""
    over_decodes: int
    """The most choices that got a next token in one."""
    full_s: float | None
    """How long steps took that had as many tokens as the throttle allows, nearly all of them. None: there were none.

    Where they are rare they hardly move the p99, and more tokens would make them longer all the same.
    """
    seqs_bound: bool
    """Did anybody wait for a choice to end?"""


@dataclass(frozen=True, slots=True)
class State:
    throttle: Throttle
    missed: frozenset[str] = frozenset()
    """Objectives that were said to be out of reach, and have been since."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of the throttle, and why."""

    reason: str
    """`cut_tokens`, `cut_seqs`, `raise_tokens`, `raise_seqs`, `hold`, `rested`, `itl_out_of_reach` or
    `ttft_out_of_reach`: the last two are said once, until the objective is met again."""
    message: str
    """The arithmetic."""


def decide(aims: Objectives, bounds: Bounds, state: State, reading: Reading) -> tuple[State, Decision]:
    """The next state, and why."""
    late = _above(reading.ttft_s, aims.ttft_s)
    met = {name for name, above in (("itl", _above(reading.itl_s, aims.itl_s)), ("ttft", late)) if not above}
    state = replace(state, missed=state.missed - met)
    if _room(aims, reading.itl_s, HIGH) < 1.0 and reading.num_over >= LEAST_OVER:
        return _cut(aims, bounds, state, reading)
    ripe = reading.num_steps >= RAISE_STEPS
    if ripe:
        raised = _raised(aims, bounds, state, reading, late=late)
        if raised is not None:
            return raised
    if ripe and late and "ttft" not in state.missed:
        why = f"{_told('ttft', reading.ttft_s, aims.ttft_s)}, and nothing that may be raised holds first tokens up"
        return replace(state, missed=state.missed | {"ttft"}), Decision("ttft_out_of_reach", why)
    return state, Decision("hold", _measured(aims, reading))


def rested(bounds: Bounds, state: State, idle_s: float) -> tuple[State, Decision] | None:
    """After a rest: each REST_S takes back half of what was cut, since much may have changed. None: nothing to do."""
    halvings = int(idle_s / REST_S)
    if not halvings or state.throttle == bounds.open:
        return None
    left = 0.5**halvings
    throttle = Throttle(
        bounds.num_tokens - int((bounds.num_tokens - state.throttle.num_tokens) * left),
        bounds.num_seqs - int((bounds.num_seqs - state.throttle.num_seqs) * left),
    )
    why = f"nothing ran for {idle_s:.0f} s: {_change(state.throttle, throttle)}"
    return State(throttle), Decision("rested", why)


def _cut(aims: Objectives, bounds: Bounds, state: State, reading: Reading) -> tuple[State, Decision]:
    """Tokens while a step has more than its decodes and a block; else choices, once the last cut of them shows."""
    throttle, floor = state.throttle, reading.over_decodes + bounds.block_size
    share = min(LEAST_CUT, max(MOST_CUT, _room(aims, reading.itl_s, AIM)))
    why = _measured(aims, reading)
    if throttle.num_tokens > floor and reading.over_tokens > floor:
        num_tokens = max(floor, int(min(throttle.num_tokens, reading.over_tokens) * share))
        return _changed(state, replace(throttle, num_tokens=num_tokens), "cut_tokens", why)
    if reading.num_running > throttle.num_seqs:
        return state, Decision("hold", f"{why}; {reading.num_running} run, and no more start until {throttle} holds")
    num_seqs = max(1, int(min(throttle.num_seqs, reading.over_decodes) * share))
    if num_seqs < throttle.num_seqs:
        return _changed(state, replace(throttle, num_seqs=num_seqs), "cut_seqs", why)
    if "itl" in state.missed or not _above(reading.itl_s, aims.itl_s):
        return state, Decision("hold", why)
    why = f"{why}, and steps have no more than their decodes and a block, of {num_seqs} choice"
    return replace(state, missed=state.missed | {"itl"}), Decision("itl_out_of_reach", why)


def _raised(
    aims: Objectives, bounds: Bounds, state: State, reading: Reading, *, late: bool
) -> tuple[State, Decision] | None:
    """More choices if some wait for that, else more tokens; None where neither held anybody up, or there is no room."""
    throttle, why, upto = state.throttle, _measured(aims, reading), LATE_LOW if late else LOW
    if reading.seqs_bound and throttle.num_seqs < bounds.num_seqs and _room(aims, reading.itl_s, upto) > 1.0:
        more = _more(throttle.num_seqs, bounds.num_seqs // SEQ_RAISES, _room(aims, reading.itl_s, AIM))
        return _changed(state, replace(throttle, num_seqs=min(more, bounds.num_seqs)), "raise_seqs", why)
    if reading.full_s is None or throttle.num_tokens >= bounds.num_tokens:
        return None
    slowest_s = max(0.0 if late else reading.full_s, reading.itl_s or 0.0)
    if _room(aims, slowest_s, upto) <= 1.0:
        return None
    now = max(throttle.num_tokens, reading.num_running + bounds.block_size)
    more = _more(now, bounds.num_tokens // TOKEN_RAISES, _room(aims, slowest_s, AIM))
    why = f"{why}; full steps take {reading.full_s * 1000:.0f} ms"
    return _changed(state, replace(throttle, num_tokens=min(more, bounds.num_tokens)), "raise_tokens", why)


def _more(now: int, by: int, room: float) -> int:
    """Never so much more that latency would leave the room if it grew in proportion; but one at least."""
    return now + max(1, int(min(by, now * (room - 1.0))))


def _changed(state: State, throttle: Throttle, reason: str, why: str) -> tuple[State, Decision]:
    return replace(state, throttle=throttle), Decision(reason, f"{why}: {_change(state.throttle, throttle)}")


def _room(aims: Objectives, itl_s: float | None, share: float) -> float:
    """By what factor an inter-token latency may grow, to be this share of the objective."""
    return share * aims.itl_s / itl_s if aims.itl_s is not None and itl_s else float("inf")


def _above(measured_s: float | None, aim_s: float | None) -> bool:
    return measured_s is not None and aim_s is not None and measured_s > aim_s


def _measured(aims: Objectives, reading: Reading) -> str:
    both = (("itl", reading.itl_s, aims.itl_s), ("ttft", reading.ttft_s, aims.ttft_s))
    return ", ".join([_told(*each) for each in both if each[2] is not None])


def _told(name: str, measured_s: float | None, aim_s: float | None) -> str:
    measured = "not known yet" if measured_s is None else f"{measured_s * 1000:.0f} ms"
    return f"p99 {name} is {measured}, the objective {(aim_s or 0) * 1000:.0f} ms"


def _change(before: Throttle, after: Throttle) -> str:
    tokens = f"{before.num_tokens} -> {after.num_tokens} tokens" if before.num_tokens != after.num_tokens else ""
    seqs = f"{before.num_seqs} -> {after.num_seqs} choices" if before.num_seqs != after.num_seqs else ""
    return " and ".join(filter(None, (tokens, seqs))) + " in a step"
