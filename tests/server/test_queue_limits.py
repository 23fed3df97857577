"""A full queue: who is one too many is told so at once, with a time to come back after, and the others are served."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.config.schema import Config, ModelConfig, QueueConfig, SchedulerConfig, ServerConfig
from octavo.core.types import Limits
from tests.server.site import Gate, backend_of, running, tiny_checkpoint

SEQS, QUEUED = 2, 3


@pytest.mark.parametrize("by", ["doorway", "engine"])
def test_a_full_queue_refuses_fast_and_serves_those_who_are_in(tmp_path: Path, by: str) -> None:
    """At the doorway by the server's settings; in the engine, which has the last word, by its own."""
    checkpoint = tiny_checkpoint(tmp_path)
    gate = Gate(backend_of(checkpoint))
    config = Config(
        model=ModelConfig(model="tiny"),
        server=ServerConfig(port=0),
        scheduler=SchedulerConfig(max_num_seqs=SEQS),
        queue=QueueConfig(max_num_queued_reqs=QUEUED if by == "doorway" else 0),
    )

    def narrowed(limits: Limits) -> Limits:
        return limits if by == "doorway" else replace(limits, max_num_queued_reqs=QUEUED)

    with (
        running(checkpoint, config, backend=gate, max_num_seqs=SEQS, narrowed=narrowed) as site,
        ThreadPoolExecutor(12) as pool,
    ):
        futures = [pool.submit(site.complete, f"{i} tell me", max_tokens=3, ignore_eos=True) for i in range(12)]
        refused = 12 - SEQS - QUEUED
        if by == "engine":
            site.until(lambda: site.app.service.duty.in_flight == 12)
            gate.open()
        site.until(lambda: sum(future.done() for future in futures) >= refused)
        gate.open()
        answers = [future.result() for future in futures]
        no = [answer for answer in answers if answer.status_code == 503]
        yes = [answer for answer in answers if answer.status_code == 200]
        assert len(yes) + len(no) == 12 and len(yes) >= SEQS + QUEUED and no
        assert by == "engine" or len(no) == refused
        for answer in no:
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["error"]["code"] == "queue_full"
            assert "--max-num-queued-reqs" in answer.json()["error"]["message"]
        assert all(answer.json()["usage"]["completion_tokens"] == 3 for answer in yes)
        assert site.metric("vllm:admission_rejections_total", reason="max_num_queued_reqs") == len(no)
        assert site.complete("and now", max_tokens=2).status_code == 200
