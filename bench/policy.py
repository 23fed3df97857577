"""What the core costs: plan + commit for each step, and prefix matching. `python bench/policy.py [--json]`.

CPU time of this thread, so that a busy machine shows little; the best and the median of many steps. Nothing here
fails where a target is missed: it is printed.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from octavo.core.plan import ScoredToken, StepPlan, StepResult, WorkResult
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.core.types import Limits
from octavo.engine.heap import settled

NUM_BLOCKS = 100_000
LONG_PROMPT = 100_000


@dataclass(frozen=True)
class Measured:
    what: str
    best_ms: float
    median_ms: float
    target_ms: float


def answer(plan: StepPlan) -> StepResult:
    """A backend that takes no time: token 5 for every sample."""
    token = ScoredToken(5)
    results = [WorkResult(w.request_id, w.choice, (token,) * len(w.samples)) for w in plan.work]
    return StepResult(plan.step, tuple(results), {"execute": 0.0})


def scheduler(num_running: int) -> Scheduler:
    return Scheduler(
        Limits(
            num_blocks=NUM_BLOCKS,
            block_size=16,
            vocab_size=50_000,
            max_model_len=200_000,
            max_num_seqs=max(64, num_running),
            max_num_batched_tokens=8192,
        )
    )


def step_ms(one: Scheduler, now: float) -> float:
    start = time.thread_time()
    plan = one.plan(now)
    planned = time.thread_time()
    result = answer(plan)
    answered = time.thread_time()
    one.commit(plan, result, now)
    return (time.thread_time() - answered + planned - start) * 1e3


def steps_ms(one: Scheduler, num_steps: int) -> list[float]:
    """As in an engine process, whose garbage collector lets alone what was there before."""
    with settled():
        return [step_ms(one, float(i)) for i in range(num_steps)]


def measure(what: str, target_ms: float, times_ms: list[float]) -> Measured:
    return Measured(what, min(times_ms), statistics.median(times_ms), target_ms)


def decode(num_running: int, target_ms: float, num_steps: int = 200) -> Measured:
    """Steady decode: every choice one token a step, one in sixteen of them into a new block."""
    one = scheduler(num_running)
    params = SamplingParams(max_tokens=10_000, temperature=0.0)
    for i in range(num_running):
        prompt = tuple((i * 7919 + j) % 50_000 for j in range(200 + i % 16))
        one.submit(Request(request_id=f"request-{i}", prompt=prompt, params=params), 0.0)
    while one.roster.waiting or any(choice.num_left > 1 for choice in one.roster.running):
        step_ms(one, 0.0)
    return measure(f"plan + commit, {num_running} running", target_ms, steps_ms(one, num_steps))


def cached_prompt() -> tuple[Measured, Measured, Measured]:
    """A 100,000-token prompt: hashed once, found in the cache, and the step that admits it."""
    one = scheduler(1)
    prompt = tuple((j * 31) % 50_000 for j in range(LONG_PROMPT))
    params = SamplingParams(max_tokens=1, temperature=0.0)
    one.submit(Request(request_id="first", prompt=prompt, params=params), 0.0)
    while one.has_work:
        step_ms(one, 0.0)
    hashed, matched, admitted = [], [], []
    for i in range(7):
        one.submit(Request(request_id=f"again-{i}", prompt=prompt, params=params), 0.0)
        chain = one.roster.waiting[0].chain
        hashed.append(timed(lambda chain=chain: chain.extend(prompt)))
        matched.append(timed(lambda chain=chain: one.cache.index.match(chain)))
        admitted.append(step_ms(one, 0.0))
    return (
        measure("hash 100k tokens, once", 30.0, hashed),
        measure("match a cached 100k-token prompt", 10.0, matched),
        measure("plan + commit of its admission and end", 20.0, admitted),
    )


def timed(call: Callable[[], object]) -> float:
    start = time.thread_time()
    call()
    return (time.thread_time() - start) * 1e3


def deep_queue(num_waiting: int = 10_000) -> Measured:
    """64 running, ten thousand waiting: the queue costs nothing while it cannot move."""
    one = scheduler(64)
    params = SamplingParams(max_tokens=10_000, temperature=0.0)
    for i in range(64 + num_waiting):
        prompt = tuple((i * 7919 + j) % 50_000 for j in range(200))
        one.submit(Request(request_id=f"request-{i}", prompt=prompt, params=params), 0.0)
    for _ in range(20):
        step_ms(one, 0.0)
    return measure("plan + commit, 64 running, 10,000 waiting", 1.0, steps_ms(one, 100))


def blocked_queue() -> Measured:
    """64 running, and a queue whose first ones are too large for the free blocks: one plan looks past all it may."""
    one = scheduler(128)
    params = SamplingParams(max_tokens=10_000, temperature=0.0)
    for i in range(64):
        prompt = tuple((i * 7919 + j) % 50_000 for j in range(24_000))
        one.submit(Request(request_id=f"request-{i}", prompt=prompt, params=params), 0.0)
    while one.roster.waiting or any(choice.num_left > 1 for choice in one.roster.running):
        step_ms(one, 0.0)
    for i in range(200):
        prompt = tuple((i * 104_729 + j) % 50_000 for j in range(100_000))
        one.submit(Request(request_id=f"large-{i}", prompt=prompt, params=params), 0.0)
    step_ms(one, 0.0)
    return measure("plan + commit, 64 running, 200 blocked", 1.0, steps_ms(one, 100))


def all_measures() -> list[Measured]:
    return [
        decode(1, 0.15),
        decode(64, 0.5),
        decode(1024, 5.0, num_steps=60),
        *cached_prompt(),
        deep_queue(),
        blocked_queue(),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    wants_json = parser.parse_args().json
    measures = all_measures()
    if wants_json:
        json.dump({"python": sys.version.split()[0], "measures": [asdict(m) for m in measures]}, sys.stdout, indent=2)
        print()
        return
    for m in measures:
        verdict = "ok" if m.best_ms <= m.target_ms else "MISSED"
        print(
            f"{m.what:45} best {m.best_ms:8.3f} ms  median {m.median_ms:8.3f} ms  target {m.target_ms:g} ms  {verdict}"
        )


if __name__ == "__main__":
    main()
