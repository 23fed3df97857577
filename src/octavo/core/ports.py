"""What the core asks of the outside. Each Protocol has one suite in `tests/contract/`, run on all who claim it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from octavo.core.plan import StepPlan, StepResult
from octavo.core.types import BlockId, TokenId


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a backend can hold and compute: a value that policy is given, never asks for again."""

    num_blocks: int
    block_size: int
    vocab_size: int
    max_model_len: int
    hidden_size: int
    """Numbers in a token's hidden state, and so in an embedding."""
    busy_tokens: int = 0
    """A step with so many tokens keeps the machine busy: with more, none of them is cheaper. 0: not known."""


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


@runtime_checkable
class BlockMemory(Protocol):
    """The KV of a backend, block by block, for whoever keeps blocks elsewhere. To be used between steps only.

    Raises ValueError for a block outside the pool, and for bytes that are not as many as a block has.
    """

    @property
    def block_bytes(self) -> int:
        """All layers of one block: the same for each block, for the whole life of the backend."""
        ...

    def read_block(self, block: BlockId) -> memoryview:
        """A copy of all that the block holds: bytes that mean something to this format of KV memory only."""
        ...

    def write_block(self, block: BlockId, raw: memoryview) -> None:
        """Makes the block what it was when `raw` was read, of this block or of another, bit for bit."""
        ...


@dataclass(frozen=True, slots=True)
class KernelSpan:
    """One stage of a step: what was computed, when, and what it had to move and to multiply at the least.

    A step's spans follow one another without gaps. Times are seconds of the clock that the engine is driven by.
    """

    op: str
    """The operation of the network, as `qkv`; or what else a step has to do, as `sample`."""
    kernel: str
    """What of it, as `matmul`; the same word as `op` where there is nothing else."""
    layer: int | None
    arithmetic: str
    """Which of the machine's peaks bounds its operations."""
    rows: int
    began_s: float
    ended_s: float
    streamed_bytes: float
    """Of `read_bytes`, those that no step leaves in a cache: weights, keys and values, each once."""
    read_bytes: float
    written_bytes: float
    operations: float
    """Multiplications and additions of products; norms, rotations and softmax have none."""


@dataclass(frozen=True, slots=True)
class MachineRates:
    """What no kernel can beat on this machine, as it was measured."""

    bytes_per_s: float
    operations_per_s: Mapping[str, float]
    """By the name of the arithmetic."""


@runtime_checkable
class Traceable(Protocol):
    """A Backend that can say where the time of a step goes. One that is not asked pays nothing for it."""

    def execute_traced(self, plan: StepPlan) -> tuple[StepResult, Callable[[], Sequence[KernelSpan]]]:
        """Runs one step as `execute` does, with the same result, bit for bit.

        The spans are made when they are asked for: that takes as long as a small step, and is no part of it.
        """
        ...

    def measure_rates(self, seconds: float) -> MachineRates:
        """Takes about so long, and all threads. Between steps only."""
        ...


@runtime_checkable
class Guide(Protocol):
    """Keeps one choice to a form: what may come next, after all that was accepted so far.

    Its answers depend on the form and the accepted tokens alone. Nothing that it is asked raises for what a client or a
    model did: then it has a `fault`.
    """

    @property
    def complete(self) -> bool:
        """Nothing may follow: the text has its form, and ends here."""
        ...

    @property
    def fault(self) -> str | None:
        """Why the choice cannot go on, for people: nothing may come, or a limit was reached. None: it can."""
        ...

    def mask(self, ends: Sequence[TokenId]) -> bytes:
        """Which ids may come next, as `plan.Sample.mask` has them. Only while it is neither complete nor at fault.

        Where the text may end here, `ends` are among them.
        """
        ...

    def accept(self, token: TokenId) -> None:
        """Moves on by a token of the text. One that may not come is a fault."""
        ...

    def fork(self) -> "Guide":
        """Another one in the same state, which goes its own way."""
        ...
