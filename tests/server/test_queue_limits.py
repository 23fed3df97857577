"""A full queue: who is one too many is told so at once, with a time to come back after, and the others are served."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from octavo.config.schema import CacheConfig, Config, ModelConfig, QueueConfig, SchedulerConfig, ServerConfig
from octavo.core.types import Limits
from tests.server.site import BLOCK_SIZE, NUM_BLOCKS, Gate, Site, as_, backend_of, running, tiny_checkpoint

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


TENANTS = "tenants: {red: {keys: [red]}, blue: {keys: [blue]}}"


@contextmanager
def behind_a_gate(tmp_path: Path, queue: QueueConfig) -> Iterator[tuple[Site, Gate, ThreadPoolExecutor]]:
    """A server whose engine is in its first step, for a request of tenant red, and stays there."""
    checkpoint = tiny_checkpoint(tmp_path)
    (tmp_path / "tenants.yaml").write_text(TENANTS, encoding="utf-8")
    gate = Gate(backend_of(checkpoint))
    config = Config(
        model=ModelConfig(model="tiny"),
        server=ServerConfig(port=0, tenants=str(tmp_path / "tenants.yaml")),
        scheduler=SchedulerConfig(max_num_seqs=1),
        cache=CacheConfig(block_size=BLOCK_SIZE),
        queue=queue,
    )
    with (
        running(checkpoint, config, backend=gate, max_num_seqs=1) as site,
        ThreadPoolExecutor(30) as pool,
    ):
        gate.let(3)
        assert ask(site, "red", "one").status_code == 200
        site.until(lambda: site.app.service.duty.in_flight == 0)
        yield site, gate, pool


def ask(site: Site, key: str, prompt: str) -> httpx.Response:
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 3, "ignore_eos": True}
    return site.post("/v1/completions", body, **as_(key))


def sent(site: Site, pool: ThreadPoolExecutor, key: str, count: int, prompt: str) -> list[Future[httpx.Response]]:
    """These requests, once each of them is refused or inside."""
    before = site.app.service.duty.in_flight
    futures = [pool.submit(ask, site, key, f"{i} {prompt}") for i in range(count)]
    service = site.app.service
    site.until(lambda: sum(f.done() for f in futures) + service.duty.in_flight - before >= count)
    return futures


def test_one_tenant_s_flood_does_not_shut_another_out(tmp_path: Path) -> None:
    """Six may be inside; red takes all of them, and blue still gets its three."""
    with behind_a_gate(tmp_path, QueueConfig(max_num_queued_reqs=5)) as (site, gate, pool):
        red = sent(site, pool, "red", 12, "tell me")
        blue = sent(site, pool, "blue", 6, "tell me")
        assert sum(future.done() for future in red) == 6 and sum(future.done() for future in blue) == 3
        gate.open()
        answers = [[future.result() for future in futures] for futures in (red, blue)]
        codes = [[answer.status_code for answer in one] for one in answers]
        words = [{"of this tenant" in answer.text for answer in one if answer.status_code == 503} for one in answers]
        assert words == [{False}, {True}], "it is said where there are others"
        assert [one.count(200) for one in codes] == [6, 3] and [one.count(503) for one in codes] == [6, 3]


def test_prompts_that_are_too_many_tokens_are_refused_in_the_middle_of_a_step(tmp_path: Path) -> None:
    """The pool has 2048 slots, 500 tokens more may wait. The engine computes one step all the while."""
    with behind_a_gate(tmp_path, QueueConfig(max_num_queued_tokens=500)) as (site, gate, pool):
        futures = sent(site, pool, "red", 20, "x" * 200)
        length = len(site.tokenizer.encode("19 " + "x" * 200))
        too_many = 20 - (NUM_BLOCKS * BLOCK_SIZE + 500) // length
        site.until(lambda: sum(future.done() for future in futures) == too_many > 0)
        refused = [future.result() for future in futures if future.done()]
        for answer in refused:
            assert answer.json()["error"]["code"] == "queue_tokens_full" and answer.headers["retry-after"]
            assert "--max-num-queued-tokens" in answer.json()["error"]["message"]
        blue = sent(site, pool, "blue", 1, "x" * 200)
        gate.open()
        answers = [future.result().status_code for future in futures + blue]
        assert answers.count(200) == 20 - too_many + 1
        assert site.app.service.meters.refused["queue_tokens_full"] == too_many
        assert site.app.service.doorway.num_waiting_tokens == 0
