"""Failures on purpose, asked for at start-up, so that tests can see what everyone else does about them."""

import logging
import os
import signal
import time
from collections.abc import Callable, Mapping

from octavo.config.checks import Fault
from octavo.core.plan import StepPlan, StepResult, Work
from octavo.core.ports import Backend, Capacity

log = logging.getLogger(__name__)


class InjectedError(RuntimeError):
    """Raised by a fault, never by a bug."""


class FaultyBackend:
    """A Backend that computes as `backend` does until the plan that meets `fault`."""

    def __init__(self, backend: Backend, fault: Fault) -> None:
        log.warning("a fault will be injected on purpose: %s", fault)
        self._backend = backend
        self._fault = fault

    def capacity(self) -> Capacity:
        return self._backend.capacity()

    def execute(self, plan: StepPlan) -> StepResult:
        if any(_meets(self._fault, work) for work in plan.work):
            log.warning("injecting %s in step %d", self._fault, plan.step)
            _ACTIONS[self._fault.kind]()
        return self._backend.execute(plan)

    def close(self) -> None:
        self._backend.close()


def with_fault(backend: Backend, fault: Fault | None) -> Backend:
    """`backend`, or one that fails as asked."""
    return FaultyBackend(backend, fault) if fault and fault.kind in _ACTIONS else backend


def delay_load(fault: Fault | None) -> None:
    """Takes as long as `slow-load` says."""
    if fault and fault.kind == "slow-load":
        log.warning("loading takes %g s longer on purpose", fault.at)
        time.sleep(fault.at)


def _meets(fault: Fault, work: Work) -> bool:
    """Is this the prefill, or the draw of the token, at which the fault strikes?"""
    if fault.kind == "prefill-error":
        return not work.samples or work.samples[0].index == 0
    return any(sample.index == fault.at - 1 for sample in work.samples)


def _fail() -> None:
    raise InjectedError("an error injected on purpose")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _freeze() -> None:
    while True:
        time.sleep(3600)


_ACTIONS: Mapping[str, Callable[[], None]] = {
    "prefill-error": _fail,
    "decode-error": _fail,
    "engine-death": _die,
    "engine-freeze": _freeze,
}
