"""What the core asks of the outside. Each Protocol has one suite in `tests/contract/`, run on all who claim it."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from octavo.core.plan import StepPlan, StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a backend can hold and compute: a value that policy is given, never asks for again."""

    num_blocks: int
    block_size: int
    vocab_size: int
    max_model_len: int


@runtime_checkable
class Backend(Protocol):
    """Turns plans into results. There is no other way in."""

    def capacity(self) -> Capacity:
        """The same value for the whole life of the backend."""
        ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Runs one step to its end.

        The result of a work depends on that work's own request alone: the same bits whatever else is in the plan,
        however its prompt was cut into chunks, and whoever computed the blocks that it reads.
        Raises only where the whole step failed; the caller then fails the requests of that plan and goes on.
        """
        ...

    def close(self) -> None:
        """Gives back memory and threads. Calling it again does nothing."""
        ...
