"""Sums of hidden states as flat arrays for one native call, and back into WorkResults."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.backends.cpu.sampling import STATUSES
from octavo.core.plan import StepPlan, WorkResult


@dataclass(frozen=True, slots=True)
class PackedSums:
    """The sums of one step, in the order of its works; usually there are none."""

    rows: NDArray[np.int32]
    """For each sum the first of the tokens of the step that are added to it, and the one after the last."""
    totals: NDArray[np.float64]
    """The sums, one after the other. The native call adds to them."""


NO_SUMS = PackedSums(np.empty(0, np.int32), np.empty(0, np.float64))


def pack_sums(plan: StepPlan, hidden_size: int) -> PackedSums:
    """Sums that were not begun yet begin at zeros."""
    if not any([work.hidden_sum is not None for work in plan.work]):
        return NO_SUMS
    rows: list[int] = []
    totals: list[NDArray[np.float64]] = []
    end = 0
    for work in plan.work:
        start, end = end, end + len(work.tokens)
        if (asked := work.hidden_sum) is not None:
            rows += (start + asked.first, end)
            totals.append(np.frombuffer(asked.total, np.float64) if asked.total else np.zeros(hidden_size))
    return PackedSums(np.array(rows, np.int32), np.concatenate(totals))


def with_sums(plan: StepPlan, results: tuple[WorkResult, ...], sums: PackedSums) -> tuple[WorkResult, ...]:
    """The results with the sums in them, once the native call has filled `sums`. One that is not finite is an error."""
    if sums is NO_SUMS:
        return results
    totals = iter(sums.totals.reshape(len(sums.rows) // 2, -1))
    return tuple(
        result if work.hidden_sum is None else _with_sum(result, next(totals))
        for work, result in zip(plan.work, results, strict=True)
    )


def _with_sum(result: WorkResult, total: NDArray[np.float64]) -> WorkResult:
    if result.error is not None:
        return result
    if not np.isfinite(total).all():
        code, _ = STATUSES[1]
        return WorkResult(result.request_id, result.choice, error="the hidden states are not finite", code=code)
    return result._replace(hidden_sum=total.tobytes())
