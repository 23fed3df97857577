"""What a step of this machine costs, for the simulated backend: `python bench/costs.py [--model PATH] [--json]`.

Prompts and answers of many lengths go through the default model, in batches of many sizes; the four costs of StepCosts
are fitted to the times that the steps took. Told with them: by how much a step is missed, at the median, and the sum.
"""

import argparse
import dataclasses
import json
import random
import statistics
import time
from collections.abc import Sequence

from octavo import boot
from octavo.backends.simulated import MeasuredStep, StepCosts
from octavo.backends.simulated.costs import StepShape
from octavo.config.sources import from_keywords
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.engine.loop import Replica

PROMPTS = (16, 100, 400, 1500)
ANSWER_LEN = 24
BATCHES = (1, 2, 4, 8, 16)


def batch(rng: random.Random, size: int, name: str) -> list[Request]:
    lengths = [rng.choice(PROMPTS) for _ in range(size)]
    params = SamplingParams(max_tokens=ANSWER_LEN, temperature=0.0, ignore_eos=True)
    return [
        Request(request_id=f"{name}-{i}", prompt=tuple(rng.choices(range(100, 40_000), k=length)), params=params)
        for i, length in enumerate(lengths)
    ]


def measure(replica: Replica, requests: Sequence[Request]) -> list[MeasuredStep]:
    """Each step of a batch, and how long its backend took."""
    steps: list[MeasuredStep] = []
    for request in requests:
        replica.scheduler.submit(request, time.perf_counter())
    while replica.scheduler.has_work:
        plan = replica.scheduler.plan(time.perf_counter())
        began = time.perf_counter()
        result = replica.backend.execute(plan)
        ended = time.perf_counter()
        steps.append(MeasuredStep(StepShape.of(plan), ended - began))
        replica.scheduler.commit(plan, result, ended)
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="default: the catalogue's default model")
    parser.add_argument("--json", action="store_true", help="the costs alone")
    args = parser.parse_args()
    given = {} if args.model is None else {"model": args.model}
    config = from_keywords(max_model_len=2048, crash_dump_dir="off", **given)
    replica = boot.build_replica(config, boot.open_model(config), lambda what: None)
    rng, steps = random.Random(1), []
    for number, size in enumerate((*BATCHES, *BATCHES)):
        steps += measure(replica, batch(rng, size, f"b{number}"))
    replica.backend.close()
    costs = StepCosts.fitted(steps)
    if args.json:
        print(json.dumps(dataclasses.asdict(costs)))
        return
    missed = statistics.median([abs(costs.seconds(each.shape) / each.took_s - 1) for each in steps])
    total, took = sum(costs.seconds(each.shape) for each in steps), sum(each.took_s for each in steps)
    print(f"{len(steps)} steps: {costs}\nmissed by {missed:.0%} at the median; {total:.1f} s of {took:.1f} s in all")


if __name__ == "__main__":
    main()
