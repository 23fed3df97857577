"""Latency objectives in simulated time: the law, the governor, a real scheduler and loop, and a backend that takes as
long as a model of costs says."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from octavo.backends.simulated import StepCosts, VirtualTime
from octavo.control.governor import Governor
from octavo.control.latencies import Latencies
from octavo.control.slo import Bounds, Objectives
from octavo.control.window import Window
from octavo.core.events import Event, Finished, Steered, Stepped
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.core.types import Limits
from octavo.engine.loop import EngineLoop
from tests.engine.timeline import COSTS, Timeline, replica_of

LIMITS = Limits(
    num_blocks=4000,
    block_size=16,
    vocab_size=1000,
    max_model_len=4096,
    max_num_seqs=64,
    max_num_batched_tokens=2048,
    enable_prefix_caching=False,  # each prompt costs what its length says
)
TAIL = 0.99
Arrival = tuple[float, Request]


def arrival(at_s: float, name: str, prompt_len: int, max_tokens: int) -> Arrival:
    first = sum(name.encode())
    prompt = tuple((first * 31 + at * 7) % 1000 for at in range(prompt_len))
    return at_s, Request(request_id=name, prompt=prompt, params=SamplingParams(max_tokens=max_tokens, ignore_eos=True))


def chats(count: int, until_s: float) -> Iterator[Arrival]:
    """About `count` answers are being written all the time, for costs near COSTS."""
    rng = random.Random(count)
    for user in range(count):
        at_s = 0.1 * user
        while at_s < until_s:
            yield arrival(at_s, f"chat{user}-{at_s:.2f}", 60, 80)
            at_s += rng.uniform(2.0, 4.0)


def endless(count: int, length: int) -> list[Arrival]:
    """So many answers are being written from the beginning to the end, whatever the machine."""
    return [arrival(0.0, f"endless{user}", 20, length) for user in range(count)]


def documents(every_s: float, until_s: float, *, since_s: float = 0.0, length: int = 1200) -> Iterator[Arrival]:
    """Long prompts with short answers, some `every_s` seconds."""
    rng, at_s = random.Random(7), since_s
    while (at_s := at_s + every_s * rng.uniform(0.5, 1.5)) < until_s:
        yield arrival(at_s, f"document-{at_s:.2f}", length, 4)


@dataclass(frozen=True)
class Played:
    """What came of a load."""

    timeline: Timeline

    def p99(self, since_s: float = 0.0) -> float:
        """Of the inter-token latencies from some time on."""
        return self.latencies(since_s).quantile(TAIL) or 0.0

    def latencies(self, since_s: float) -> Window:
        latencies = Latencies()
        latencies.itl = Window(10**6)
        begun = False
        for event in self.timeline.events:
            if not begun and event.time_s > since_s:
                latencies.itl.clear()
                begun = True
            latencies.note([event])
        return latencies.itl

    def decisions(self, since_s: float = 0.0) -> list[Steered]:
        return [e for e in self.timeline.events if isinstance(e, Steered) and e.time_s > since_s]

    def changes(self, since_s: float = 0.0) -> list[Steered]:
        return [decision for decision in self.decisions(since_s) if decision.reason.split("_")[0] in ("cut", "raise")]

    @property
    def end_s(self) -> float:
        return max(event.time_s for event in self.timeline.events if isinstance(event, Finished))


def play(
    aims: Objectives | None,
    arrivals: Sequence[Arrival],
    costs: StepCosts = COSTS,
    *,
    then: dict[float, StepCosts] | None = None,
    limits: Limits = LIMITS,
) -> Played:
    """`then`: at these times costs change."""
    time = VirtualTime()
    bounds = Bounds(limits.max_num_batched_tokens, limits.max_num_seqs, limits.block_size)
    replica, backend = replica_of(limits, time, costs, None if aims is None else Governor(aims, bounds))
    due = sorted((then or {}).items())

    def heard(timeline: Timeline, event: Event) -> None:
        while due and event.time_s >= due[0][0]:
            backend.costs = due.pop(0)[1]

    timeline = Timeline(time, heard)
    for at_s, request in arrivals:
        timeline.add(at_s, request)
    EngineLoop(replica, time).run(timeline)
    return Played(timeline)


def test_an_objective_that_is_missed_without_is_met_at_little_cost() -> None:
    load = [*chats(8, 60), *documents(0.9, 60)]
    off, on = play(None, load), play(Objectives(itl_s=0.2), load)
    assert off.p99() > 0.5
    assert on.p99() < 0.2, "from the beginning, though it had to be found out"
    assert on.end_s < off.end_s * 1.05
    assert len(on.changes(since_s=30)) <= 1


def test_where_the_objective_is_met_anyhow_nothing_is_different() -> None:
    load = [*chats(4, 10), *documents(1.0, 10)]
    off, watched = play(None, load), play(Objectives(itl_s=100.0), load)
    assert not off.decisions() and watched.decisions() and not watched.changes()
    assert [e for e in watched.timeline.events if not isinstance(e, Steered)] == off.timeline.events


def test_hiccups_of_less_than_a_step_in_a_hundred_are_no_reason() -> None:
    hiccup = replace(COSTS, base_s=1.0)
    then = {at_s: costs for k in range(1, 15) for at_s, costs in ((4.0 * k, hiccup), (4.0 * k + 0.5, COSTS))}
    on = play(Objectives(itl_s=0.1), endless(4, 3500), then=then)
    assert sum(isinstance(e, Stepped) and sum(e.timings_s.values()) > 1 for e in on.timeline.events) >= 10
    assert not on.changes()


def test_it_is_found_from_below_as_from_above() -> None:
    """A machine that is four times as slow for a while: what was cut for that is given back after it."""
    slow = replace(COSTS, token_s=4 * COSTS.token_s)
    load = [*chats(6, 120), *documents(0.7, 120, length=900)]
    steady, helped = play(Objectives(itl_s=0.25), load), play(Objectives(itl_s=0.25), load, slow, then={40.0: COSTS})
    above, below = steady.decisions()[-1].num_tokens, helped.decisions()[-1].num_tokens
    assert min(decision.num_tokens for decision in helped.decisions()) < 0.5 * below
    assert 0.7 * above < below < 1.4 * above
    assert helped.p99(since_s=50) < 0.25
    assert len(helped.changes(since_s=100)) <= 1


def test_after_a_step_in_load_it_is_met_again() -> None:
    load = [*chats(8, 90), *documents(6.0, 30), *documents(0.7, 90, since_s=30, length=900)]
    off, on = play(None, load), play(Objectives(itl_s=0.2), load)
    assert on.p99(since_s=40) < 0.2 < off.p99(since_s=40)
    assert not on.changes()[0].time_s < 30, "a document now and then is within the hundredth"
    assert len(on.changes(since_s=60)) <= 1


def test_where_decodes_alone_are_too_slow_fewer_run() -> None:
    costs = StepCosts(base_s=0.01, token_s=0.0002, seq_s=0.004)
    load = [arrival(0.15 * i, f"r{i}", 30, 60) for i in range(400)]
    off, on = play(None, load, costs), play(Objectives(itl_s=0.1), load, costs)
    assert off.p99(since_s=30) > 0.2
    assert on.p99(since_s=30) < 0.1
    assert on.decisions()[-1].num_seqs < 24
    assert len([e for e in on.timeline.events if isinstance(e, Finished)]) == 400


def test_an_objective_out_of_reach_leaves_the_least_and_is_told_once() -> None:
    load = [*chats(3, 60), *documents(3.0, 60)]
    on = play(Objectives(itl_s=0.005), load)
    told = [decision for decision in on.decisions() if decision.reason == "itl_out_of_reach"]
    assert len(told) == 1 and told[0].num_seqs == 1
    assert len([e for e in on.timeline.events if isinstance(e, Finished)]) == len(load), "everybody is served"


def test_a_rest_gives_back_half_of_the_cut() -> None:
    load = [*chats(8, 40), *documents(1.0, 40)]
    later = [arrival(400.0, "late", 30, 5)]
    on = play(Objectives(itl_s=0.2), [*load, *later])
    rested = [decision for decision in on.decisions() if decision.reason == "rested"]
    before = on.decisions()[on.decisions().index(rested[0]) - 1]
    assert len(rested) == 1 and before.num_tokens < rested[0].num_tokens <= 2048


def test_late_first_tokens_spend_what_the_objective_leaves() -> None:
    """Long documents now and then: under the one objective steps stay short, under both they may be longer."""
    slow = replace(COSTS, token_s=4 * COSTS.token_s)
    load = [*chats(8, 150), *documents(1.0, 25), *documents(8.0, 150, since_s=40, length=3000)]
    one, both = (
        play(Objectives(itl_s=0.3, ttft_s=ttft_s), load, slow, then={30.0: COSTS}).decisions()[-1].num_tokens
        for ttft_s in (None, 1.0)
    )
    assert both > 1.1 * one


machines = st.builds(
    StepCosts,
    base_s=st.floats(0.002, 0.03),
    token_s=st.floats(0.0001, 0.001),
    seq_s=st.floats(0.0, 0.001),
    read_s=st.sampled_from([0.0, 1e-8, 1e-7]),
)


@settings(max_examples=max(1, settings().max_examples // 6), phases=set(Phase) - {Phase.shrink})  # a load is long
@given(machines, st.integers(1, 12), st.floats(1.5, 10.0), st.floats(0.3, 0.9), st.integers(300, 2000))
def test_what_is_in_reach_is_met_and_then_left_alone(
    costs: StepCosts, num_chats: int, slack: float, busy: float, length: int
) -> None:
    """Over machines and loads. In reach: `slack` times as long as a step of `num_chats` decodes and two blocks."""
    shortest_s = costs.base_s + costs.token_s * (num_chats + 32) + costs.seq_s * num_chats + costs.read_s * 5e5
    every_s = (costs.token_s * length + costs.base_s) / busy
    load = [*endless(num_chats, 400), *documents(every_s, 200 * every_s, length=length)]
    on = play(Objectives(itl_s=slack * shortest_s), load, costs)
    late = on.changes(since_s=on.end_s / 2)
    assert len(late) <= 4
    measured = on.latencies(since_s=max([on.end_s / 2, *(each.time_s for each in late)]))
    # Not 0.99: the law looks at other, shorter spans, and in one of them it may be a step more.
    nearly_all = measured.quantile(0.98)
    assert nearly_all is None or nearly_all <= slack * shortest_s * 1.001 or measured.weight < 500
    assert all(1 <= d.num_tokens <= 2048 and 1 <= d.num_seqs <= 64 for d in on.decisions())
