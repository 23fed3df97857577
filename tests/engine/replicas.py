"""Engines over the ledger backend, built in this process or, by `command`, in a child."""

import os
import select
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import msgspec

from octavo.backends.ledger import LedgerBackend
from octavo.config.checks import parse_fault
from octavo.core.plan import StepPlan, StepResult
from octavo.core.ports import Backend, Capacity
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.core.types import Limits
from octavo.engine.client import EngineFacts
from octavo.engine.faults import with_fault
from octavo.engine.loop import Replica
from octavo.engine.process import run_child

ROOT = Path(__file__).parents[2]
LIMITS = Limits(num_blocks=512, block_size=4, vocab_size=1000, max_model_len=128, max_num_seqs=16)


class Plan(msgspec.Struct):
    """What a test's engine is to be; travels as its setup."""

    num_blocks: int = LIMITS.num_blocks
    max_num_seqs: int = LIMITS.max_num_seqs
    max_num_batched_tokens: int = LIMITS.max_num_batched_tokens
    fault: str | None = None
    refused: str | None = None
    """Loading is refused with this message."""
    broken: str | None = None
    """Loading crashes with this message."""
    gate: str | None = None
    """A pipe in the file system. The step that draws a second token waits until something can be read from it."""
    busy: bool = False
    """It waits computing, as a long step does, and not asleep."""
    settle_s: float = 0.0
    """It asks for so long to end well."""

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


class HeldBackend:
    """Computes as `backend` does, but waits at the gate once: so that no request is over before a test wants it."""

    def __init__(self, backend: Backend, gate: str, busy: bool = False) -> None:
        self._backend = backend
        self._busy = busy
        self._gate: int | None = os.open(gate, os.O_RDONLY)

    def capacity(self) -> Capacity:
        return self._backend.capacity()

    def execute(self, plan: StepPlan) -> StepResult:
        if self._gate is not None and any(sample.index == 1 for work in plan.work for sample in work.samples):
            while self._busy and not select.select([self._gate], [], [], 0)[0]:
                pass
            os.read(self._gate, 1)
            self._forget()
        return self._backend.execute(plan)

    def close(self) -> None:
        self._forget()
        self._backend.close()

    def _forget(self) -> None:
        if self._gate is not None:
            os.close(self._gate)
            self._gate = None


def build(payload: bytes, report: Callable[[str], None]) -> Replica:
    plan = msgspec.json.decode(payload, type=Plan)
    report("building")
    if plan.refused:
        raise ValueError(plan.refused)
    if plan.broken:
        raise RuntimeError(plan.broken)
    limits = Limits(
        **asdict(LIMITS)
        | {
            "num_blocks": plan.num_blocks,
            "max_num_seqs": plan.max_num_seqs,
            "max_num_batched_tokens": plan.max_num_batched_tokens,
        }
    )
    backend = LedgerBackend(
        num_blocks=limits.num_blocks,
        block_size=limits.block_size,
        vocab_size=limits.vocab_size,
        max_model_len=limits.max_model_len,
    )
    facts = EngineFacts(
        model="ledger",
        fingerprint="ledger",
        capacity=backend.capacity(),
        isa="none",
        num_threads=1,
        weight_format="none",
        kv_cache_dtype="none",
        settle_s=plan.settle_s,
    )
    held = backend if plan.gate is None else HeldBackend(backend, plan.gate, plan.busy)
    return Replica(Scheduler(limits), with_fault(held, plan.fault and parse_fault(plan.fault)), facts)


def command(fd: int) -> list[str]:
    """The command line of a child that builds as `build` does."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.engine import replicas; replicas.child()"
    return [sys.executable, "-c", code, "engine", str(fd)]


def child() -> None:
    sys.exit(run_child(int(sys.argv[2]), build))


def request(name: str, length: int = 8, **params: object) -> Request:
    """A request with a prompt of its own."""
    seed = sum(name.encode())
    prompt = tuple((seed * 31 + position * 7) % LIMITS.vocab_size for position in range(length))
    return Request(request_id=name, prompt=prompt, params=SamplingParams(**{"max_tokens": 6, **params}))
