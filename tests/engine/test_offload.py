"""The whole way of a block, with real threads and files, under the real scheduler over the ledger."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.backends.ledger import LedgerBackend
from octavo.core.audit import audit
from octavo.core.events import Admitted, Finished, Preempted, Tiered
from octavo.core.plan import BlockStore
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.core.tiers import Costs, Found, Tier, TierLimits
from octavo.core.types import FinishReason, Limits
from octavo.engine.blockfiles import BlockFormat, DiskMedium, MemoryMedium
from octavo.engine.loop import EngineLoop, Replica
from octavo.engine.offload import Medium, Offload, TieredBackend
from tests.engine.replicas import Plan, build
from tests.engine.script import Script, play

LIMITS = Limits(num_blocks=6, block_size=4, vocab_size=1000, max_model_len=24, max_num_seqs=4)
ROOM = TierLimits(name="disk", num_blocks=100, num_storing=100, num_staged=100)


def request(name: str, seed: int, length: int = 13, max_tokens: int = 3) -> Request:
    prompt = tuple((seed * 31 + position * 7) % 1000 for position in range(length))
    return Request(request_id=name, prompt=prompt, params=SamplingParams(max_tokens=max_tokens, temperature=0.0))


def disk(path: Path) -> DiskMedium:
    ledger_bytes = LedgerBackend(num_blocks=1, block_size=4, vocab_size=2, max_model_len=2).block_bytes
    return DiskMedium(path, BlockFormat(bytes(32), 4, ledger_bytes))


@contextmanager
def replica(medium: Medium, limits: Limits = LIMITS, **changes: object) -> Iterator[Replica]:
    ledger = LedgerBackend(
        num_blocks=limits.num_blocks, block_size=4, vocab_size=1000, max_model_len=limits.max_model_len
    )
    offload = Offload(medium, ledger.block_bytes)
    tier = Tier(replace(ROOM, **changes), Costs(block_bytes=ledger.block_bytes), 4)  # type: ignore[arg-type]
    facts = build(Plan().encode(), lambda _: None).facts
    made = Replica(Scheduler(limits, tier=tier, watermark=0.0), TieredBackend(ledger, ledger, offload), facts)
    yield replace(made, offload=offload)
    made.backend.close()
    assert audit(made.scheduler) == ()


def hits(script: Script) -> dict[str, int]:
    return {event.request_id: event.cached_tokens for event in script.events if isinstance(event, Admitted)}


def alone(*requests: Request) -> dict[str, list[int]]:
    plain = build(Plan().encode(), lambda _: None)
    return {one.request_id: play(plain, [one]).tokens(one.request_id) for one in requests}


def in_turn(made: Replica, requests: list[Request]) -> Script:
    whole = Script()
    for one in requests:
        script = play(made, [one])
        whole.publish(script.events)
    return whole


ROUND = [request(name, seed) for name, seed in (("a", 1), ("b", 2), ("c", 3), ("a again", 1), ("b again", 2))]


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_blocks_come_back_from_where_they_went(where: str, tmp_path: Path) -> None:
    with replica(MemoryMedium() if where == "memory" else disk(tmp_path)) as made:
        script = in_turn(made, ROUND)
    assert hits(script) == {"a": 0, "b": 0, "c": 0, "a again": 12, "b again": 12}
    assert {one.request_id: script.tokens(one.request_id) for one in ROUND} == alone(*ROUND)


@pytest.mark.parametrize("caching", [True, False])
def test_swapped_choices_go_on_as_if_nothing_had_happened(caching: bool, tmp_path: Path) -> None:
    crowd = [request(f"r{i}", i, length=5, max_tokens=14) for i in range(4)]
    limits = replace(LIMITS, num_blocks=9, enable_prefix_caching=caching, block_manager="v1")
    with replica(disk(tmp_path), limits) as made:
        script = play(made, crowd)
    assert any(event.tokens_swapped for event in script.events if isinstance(event, Preempted))
    assert {one.request_id: script.tokens(one.request_id) for one in crowd} == alone(*crowd)


def test_the_next_process_finds_what_the_last_one_had(tmp_path: Path) -> None:
    """What was evicted, and what never was: that is stored at the end."""
    with replica(disk(tmp_path), persistent=True) as made:
        in_turn(made, ROUND[:3])
        EngineLoop(made).settle(20.0)
    with replica(disk(tmp_path), persistent=True) as made:
        wait_for_scan(made)
        script = in_turn(made, ROUND[:3])
    assert hits(script) == {"a": 12, "b": 12, "c": 12}
    assert {one.request_id: script.tokens(one.request_id) for one in ROUND[:3]} == alone(*ROUND[:3])


def wait_for_scan(made: Replica) -> None:
    assert made.offload is not None
    made.scheduler.note(made.offload.reports(20.0), 0.0)
    assert made.scheduler.cache.tier is not None and made.scheduler.cache.tier.blocks


@pytest.mark.parametrize("harm", ["truncate", "flip", "remove"])
def test_a_block_file_that_is_not_as_it_was_is_computed_again(harm: str, tmp_path: Path, caplog) -> None:
    with replica(disk(tmp_path)) as made:
        script = in_turn(made, ROUND[:3])
        assert made.offload is not None and made.offload.flush(20.0)
        for path in tmp_path.rglob("*.kv"):
            spoil(path, harm)
        again = in_turn(made, ROUND[3:])
    assert {one.request_id: again.tokens(one.request_id) for one in ROUND[3:]} == alone(*ROUND[3:])
    assert hits(again)["a again"] < 12 and len(script.reasons()) == 3
    assert "is computed again" in caplog.text


def spoil(path: Path, harm: str) -> None:
    data = bytearray(path.read_bytes())
    if harm == "remove":
        path.unlink()
    elif harm == "truncate":
        path.write_bytes(data[:-1])
    else:
        data[-5] ^= 4
        path.write_bytes(data)


def test_where_nothing_can_be_written_serving_goes_on(tmp_path: Path, caplog) -> None:
    with replica(disk(tmp_path)) as made:
        in_turn(made, ROUND[:1])
        folder = next(tmp_path.iterdir())
        shutil.rmtree(folder)
        folder.write_text("no folder")
        script = in_turn(made, ROUND[1:3])
        assert made.offload is not None and made.offload.flush(20.0)
        script.publish(in_turn(made, ROUND[3:]).events)
        told = [event for event in script.events if isinstance(event, Tiered)][-1]
        assert told.closed == "nothing can be written" and told.blocks_storing == 0
    assert set(script.reasons().values()) == {FinishReason.LENGTH}
    assert {one.request_id: script.tokens(one.request_id) for one in ROUND[1:]} == alone(*ROUND[1:])
    assert caplog.text.count("no KV blocks are stored any more") == 1


class Stuck:
    """A medium that never answers a read."""

    def __init__(self) -> None:
        self._inner = MemoryMedium()
        self.write, self.drop, self.scan = self._inner.write, self._inner.drop, self._inner.scan
        self.let_go = threading.Event()

    def read(self, key: bytes) -> memoryview:
        self.let_go.wait()
        raise OSError("gone")

    def close(self) -> None:
        return


def test_a_disk_that_does_not_answer_costs_its_patience_once() -> None:
    medium = Stuck()
    with replica(medium, patience_s=0.2) as made:
        script = in_turn(made, ROUND)
        medium.let_go.set()
    assert {one.request_id: script.tokens(one.request_id) for one in ROUND} == alone(*ROUND)
    told = [event for event in script.events if isinstance(event, Tiered)][-1]
    assert told.closed == "a block was not read within 0.2 s" and told.num_blocks == 0


def test_a_step_that_fails_while_it_takes_snapshots_fails_alone(tmp_path: Path, monkeypatch, caplog) -> None:
    with replica(disk(tmp_path)) as made:
        in_turn(made, ROUND[:1])
        with monkeypatch.context() as patch:
            patch.setattr(LedgerBackend, "read_block", raise_error)
            failed = in_turn(made, ROUND[1:2])
        script = in_turn(made, ROUND[2:])
    (end,) = [event for event in failed.events if isinstance(event, Finished)]
    assert end.reason is FinishReason.ERROR and "no such luck" in (end.message or "")
    assert {one.request_id: script.tokens(one.request_id) for one in ROUND[2:]} == alone(*ROUND[2:])


def raise_error(*_: object) -> None:
    raise RuntimeError("no such luck")


def test_an_offload_says_what_moving_and_computing_cost() -> None:
    offload = Offload(MemoryMedium(), block_bytes=10)
    offload.measured("prefill", 1000, 0.5)
    offload.measured("store", 10**6, 0.001)
    costs = [report for report in offload.reports() if isinstance(report, Costs)][-1]
    assert (costs.prefill_tokens_per_s, costs.store_bytes_per_s, costs.load_bytes_per_s) == (2000.0, 1e9, 0.0)
    offload.close()
    offload.close()


def test_what_was_found_is_reported_once() -> None:
    class Left(MemoryMedium):
        def scan(self) -> tuple[Found, ...]:
            return (Found(b"key", None, (1, 2)),)

    offload = Offload(Left(), block_bytes=10)
    assert [report.found[0].key for report in offload.reports(20.0)] == [b"key"]  # type: ignore[union-attr]
    offload.store(BlockStore(0, b"other", None, (1, 2)), memoryview(b"bytes"))
    assert offload.flush(20.0)
    offload.close()
