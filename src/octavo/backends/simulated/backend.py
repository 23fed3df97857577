"""SimulatedBackend: what another backend answers, at the time that a model of costs says, on a virtual clock."""

from typing import Protocol

from octavo.backends.simulated.costs import StepCosts, StepShape
from octavo.backends.simulated.virtual_time import VirtualTime
from octavo.core.plan import StepPlan, StepResult
from octavo.core.ports import Backend, BlockMemory, Capacity
from octavo.core.types import BlockId


class Answers(Backend, BlockMemory, Protocol):
    """A backend whose blocks can be read and written."""


class SimulatedBackend:
    """Implements `core.ports.Backend` and `BlockMemory`. Answers and memory are the other's; only time is its own.

    Over a ledger a replica on it does in seconds what takes a real one hours, checked as in any test.
    """

    def __init__(self, answers: Answers, costs: StepCosts, time: VirtualTime) -> None:
        self._answers = answers
        self.costs = costs
        """May be changed between steps: another process takes a core, say."""
        self._time = time

    def capacity(self) -> Capacity:
        return self._answers.capacity()

    def execute(self, plan: StepPlan) -> StepResult:
        took_s = self.costs.seconds(StepShape.of(plan)) if plan.work else 0.0
        self._time.advance(took_s)
        result = self._answers.execute(plan)
        return StepResult(result.step, result.results, {"execute": took_s})

    @property
    def block_bytes(self) -> int:
        return self._answers.block_bytes

    def read_block(self, block: BlockId) -> memoryview:
        return self._answers.read_block(block)

    def write_block(self, block: BlockId, raw: memoryview) -> None:
        self._answers.write_block(block, raw)

    def close(self) -> None:
        self._answers.close()
