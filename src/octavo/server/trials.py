"""Trials: structured outputs are tried in other processes, waited for by threads of their own: that holds up nobody."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from octavo.core.structured import StructuredOutput
from octavo.text.trial import WAIT_S, Trial, Unfinished

QUICK_S = 0.3
"""Usual forms take a hundredth of this."""


class Trials:
    """Trials for callers on the event loop, in two lanes: what is not soon done in the first begins anew in the second.

    So whoever sends forms that take long, in whatever number, makes usual ones wait for moments and not for minutes.
    """

    def __init__(self, quick_s: float = QUICK_S) -> None:
        self._lanes = [(Trial(wait_s), ThreadPoolExecutor(1, "trial")) for wait_s in (quick_s, WAIT_S)]

    async def check(self, output: StructuredOutput) -> None:
        """Raises GrammarError where it cannot be compiled. What was tried before does not wait for what was not."""
        for trial, _ in self._lanes:
            if trial.knows(output):
                return trial.check(output)
        (quick, first), (patient, second) = self._lanes
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(first, quick.check, output)
        except Unfinished:
            await loop.run_in_executor(second, patient.check, output)

    def close(self) -> None:
        """Drops what waits, and ends the processes and the threads."""
        for trial, thread in self._lanes:
            thread.shutdown(wait=False, cancel_futures=True)
            trial.close()
