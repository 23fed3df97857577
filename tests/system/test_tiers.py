"""The tier below the KV cache, with the default model: swapped, loaded, read after a restart: the bits are the same."""

from dataclasses import replace
from pathlib import Path

import pytest

from octavo.core.events import Preempted
from octavo.engine.loop import EngineLoop
from tests.engine.script import play
from tests.system.serving import MODEL, Served, serving
from tests.system.test_bits import FAST, ISAS, Answers, answers, asked, each_alone, hits, others, replica

ISA = ISAS[0]
TIGHT = {"num_blocks": FAST.tight_blocks, "max_model_len": 16 * FAST.tight_blocks}
ROOM = {"kv_offload_bytes": 64 << 20}


@pytest.fixture(scope="module")
def alone(default_model: Path) -> Answers:
    return each_alone(default_model, ISA)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize(("budget", "turns"), [(2, 45), (3, 30), (256, 4)])
def test_swapped_is_undisturbed(default_model, alone, tmp_path, budget: int, turns: int, caching: bool):
    """Somebody more important needs nearly all blocks while they are in the middle: to memory with them, or to disk."""
    important = [replace(one, priority=-1) for one in others(1, length=2 * FAST.length, new=2)]
    options = {"max_num_batched_tokens": budget, "max_num_seqs": 2, "enable_prefix_caching": caching, **TIGHT, **ROOM}
    where = {"kv_offload_path": str(tmp_path)} if budget == 256 else {}
    with replica(default_model, ISA, scheduling_policy="priority", **options, **where) as built:
        script = play(built, asked(FAST), *[[]] * turns, important)
        tier = built.scheduler.cache.tier
    swapped = {event.request_id for event in script.events if isinstance(event, Preempted) and event.tokens_swapped}
    assert swapped & {request.request_id for request in asked(FAST)}
    assert tier is not None and tier.counts.loads > 0
    assert answers(script, FAST) == alone


def test_evicted_and_loaded_is_undisturbed(default_model, alone):
    with replica(default_model, ISA, **TIGHT, **ROOM) as built:
        play(built, asked(FAST, "before"))
        play(built, others(6, length=FAST.other_length))
        script = play(built, asked(FAST))
        tier = built.scheduler.cache.tier
    assert tier is not None and tier.counts.loads > 0
    assert answers(script, FAST) == alone


def test_another_process_reads_what_the_last_one_left(default_model, alone, tmp_path):
    options = {"kv_offload_path": str(tmp_path), **ROOM}
    with replica(default_model, ISA, **options) as built:
        play(built, asked(FAST, "before"))
        EngineLoop(built).settle(20.0)
    with replica(default_model, ISA, **options) as built:
        assert built.offload is not None
        built.scheduler.note(built.offload.reports(20.0), 0.0)
        script = play(built, asked(FAST))
    assert hits(script) == [FAST.length // 16 * 16] * 2
    assert answers(script, FAST) == alone


def completed(served: Served) -> tuple[str, int]:
    answer = served.client().completions.create(
        model=MODEL, prompt="It was a bright cold day in April. " * 12, max_tokens=8, temperature=0
    )
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    return answer.choices[0].text, answer.usage.prompt_tokens_details.cached_tokens or 0


def test_a_server_that_is_restarted_still_has_its_prompts(default_model, tmp_path):
    line = (str(default_model), "--kv-offload-bytes", "100000000", "--kv-offload-path", str(tmp_path))
    with serving(*line) as served:
        first, cached = completed(served)
        assert cached == 0 and "KV offload: 271 blocks = 0.09 GiB in " in served.words()
    with serving(*line) as served:
        again, cached = completed(served)
    assert again == first and cached >= 96
