"""StepCosts: how long a step takes, from what is in its plan. Linear, and fitted to steps that were measured."""

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

import numpy as np

from octavo.core.plan import StepPlan


@dataclass(frozen=True, slots=True)
class StepShape:
    """What of a plan decides how long it takes."""

    num_tokens: int
    num_seqs: int
    num_read: int
    """Positions that are attended to: of each token all those up to its own."""

    @classmethod
    def of(cls, plan: StepPlan) -> "StepShape":
        lengths = [(work.start, len(work.tokens)) for work in plan.work]
        num_read = sum(count * start + count * (count + 1) // 2 for start, count in lengths)
        return cls(plan.num_tokens, len(lengths), num_read)


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A step of a real backend, and how long it took."""

    shape: StepShape
    took_s: float


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds: for a step, and for each token, sequence and attended position in it. Raises ValueError for nonsense."""

    base_s: float
    token_s: float
    seq_s: float = 0.0
    read_s: float = 0.0

    def __post_init__(self) -> None:
        if min(astuple(self)) < 0 or self.base_s + self.token_s + self.seq_s <= 0:
            raise ValueError(f"a step takes time, and nothing in it takes less than none: {self}")

    def seconds(self, shape: StepShape) -> float:
        read = self.read_s * shape.num_read
        return self.base_s + self.token_s * shape.num_tokens + self.seq_s * shape.num_seqs + read

    @classmethod
    def fitted(cls, steps: Sequence[MeasuredStep]) -> "StepCosts":
        """Those with the least squared relative errors. One that comes out below zero is 0, and the rest fitted anew.

        Raises ValueError for fewer steps than costs.
        """
        if len(steps) < 4:
            raise ValueError(f"4 steps or more are needed for 4 costs, got {len(steps)}")
        took = np.array([step.took_s for step in steps])
        rows = np.array([_row(step.shape) for step in steps]) / took[:, None]
        costs = _least_squares(rows, range(4))
        return cls(*costs)


def _row(shape: StepShape) -> tuple[float, ...]:
    return (1.0, shape.num_tokens, shape.num_seqs, shape.num_read)


def _least_squares(rows: np.ndarray, kept: Iterable[int]) -> list[float]:
    columns = list(kept)
    found, *_ = np.linalg.lstsq(rows[:, columns], np.ones(len(rows)), rcond=None)
    if columns and found.min() < 0:
        worst = columns[int(found.argmin())]
        return _least_squares(rows, [column for column in columns if column != worst])
    costs = [0.0] * rows.shape[1]
    for column, value in zip(columns, found, strict=True):
        costs[column] = float(value)
    return costs
