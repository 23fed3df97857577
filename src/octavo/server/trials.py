"""Trials: structured outputs are tried in another process, waited for by one thread: it holds up nobody else."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from octavo.core.structured import StructuredOutput
from octavo.text.trial import Trial


class Trials:
    """A Trial for callers on the event loop."""

    def __init__(self) -> None:
        self._trial = Trial()
        self._thread = ThreadPoolExecutor(1, "trial")

    async def check(self, output: StructuredOutput) -> None:
        """Raises GrammarError where it cannot be compiled. What was tried before does not wait for what was not."""
        if self._trial.knows(output):
            self._trial.check(output)
        else:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._trial.check, output)

    def close(self) -> None:
        """Drops what waits, and ends the process and the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._trial.close()
