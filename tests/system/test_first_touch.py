"""Memory that a step is the first to touch: the system clears it then, and whoever is in that step waits."""

import os
import time
from pathlib import Path

from octavo.boot import build_replica, open_model
from octavo.config.sources import from_keywords
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams

STEPS = 400
"""Each fills a block more: of the default model some 170 blocks of a layer make a huge page."""
MOST_BYTES = 16 << 20
"""Far below a huge page for each of the 30 layers."""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_no_step_pays_for_the_cache_of_all_layers_at_once(default_model: Path) -> None:
    config = from_keywords(model=str(default_model), num_blocks=8192, max_model_len=2048, crash_dump_dir="off")
    replica = build_replica(config, open_model(config), lambda what: None)
    scheduler, grown = replica.scheduler, list[int]()
    for step in range(STEPS):
        prompt = tuple((step * 16 + at) % 40_000 for at in range(16))
        params = SamplingParams(max_tokens=1, temperature=0.0)
        scheduler.submit(Request(request_id=str(step), prompt=prompt, params=params), time.monotonic())
        plan = scheduler.plan(time.monotonic())
        before = resident_bytes()
        result = replica.backend.execute(plan)
        grown.append(resident_bytes() - before)
        scheduler.commit(plan, result, time.monotonic())
    replica.backend.close()
    assert sum(grown) > 2 * MOST_BYTES, "the blocks were all new"
    assert max(grown[8:]) < MOST_BYTES, "but for the first steps, which have all to begin with"
