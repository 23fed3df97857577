"""Compilations: structured outputs on their way to becoming guides, in threads beside the loop."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

from octavo.core.ports import Guide
from octavo.core.structured import StructuredOutput
from octavo.core.types import RequestId
from octavo.engine.clock import Clock, now
from octavo.engine.heap import give_back

log = logging.getLogger(__name__)

Compile = Callable[[StructuredOutput], Guide]
"""Raises ValueError, with words for people, for what is none or takes too much."""
Outcome = tuple[RequestId, Guide | str]
"""A guide, or why there is none."""

PATIENCE_S = 60.0
"""A request does not wait for its guide for longer. What was tried before (`text.trial`) takes seconds at most."""
NUM_THREADS = 2
STACK_BYTES = 64 << 20
"""Compilers recurse: four times what `text.trial` lets pass."""


class Compilations:
    """Started by the loop's thread, and taken by it: neither ever waits longer than it asks to."""

    def __init__(self, compile: Compile, clock: Clock = now) -> None:
        self._compile = compile
        self._clock = clock
        self._due: dict[RequestId, float] = {}
        self._todo: deque[tuple[RequestId, StructuredOutput]] = deque()
        self._done: SimpleQueue[Outcome] = SimpleQueue()
        self._lock = threading.Lock()
        self._num_threads = 0

    @property
    def pending(self) -> bool:
        """Is there any whose outcome was not taken?"""
        return bool(self._due)

    def start(self, request_id: RequestId, output: StructuredOutput) -> None:
        self._due[request_id] = self._clock() + PATIENCE_S
        with self._lock:
            self._todo.append((request_id, output))
            if self._num_threads < NUM_THREADS:
                self._num_threads += 1
                _start_thread(self._work)

    def drop(self, request_id: RequestId) -> None:
        """Nobody waits for this one any more. Where it was not begun, it will not be."""
        self._due.pop(request_id, None)

    def take(self, wait_s: float = 0.0) -> list[Outcome]:
        """The outcomes since the last call; where there are none, waits at most so long for one."""
        outcomes: list[Outcome] = []
        try:
            outcomes.append(self._done.get(timeout=wait_s) if wait_s else self._done.get_nowait())
            while True:
                outcomes.append(self._done.get_nowait())
        except Empty:
            pass
        time_s = self._clock()
        late = [request_id for request_id, due in self._due.items() if due < time_s]
        outcomes += [(request_id, f"it was not compiled within {PATIENCE_S:.0f} s") for request_id in late]
        return [outcome for outcome in outcomes if self._due.pop(outcome[0], None) is not None]

    def _work(self) -> None:
        """Compiles what there is to do, gives back what that took for a moment, and ends."""
        while (todo := self._next()) is not None:
            request_id, output = todo
            if request_id in self._due:
                self._done.put((request_id, self._outcome(output)))
        give_back()

    def _next(self) -> tuple[RequestId, StructuredOutput] | None:
        """None, and this thread is none of ours any more, where there is nothing to do."""
        with self._lock:
            if self._todo:
                return self._todo.popleft()
            self._num_threads -= 1
            return None

    def _outcome(self, output: StructuredOutput) -> Guide | str:
        try:
            return self._compile(output)
        except ValueError as error:
            return str(error)
        except BaseException as error:
            log.exception("a structured output could not be compiled")
            return f"the compiler failed: {type(error).__name__}"


def no_guides(output: StructuredOutput) -> Guide:
    """For engines without a compiler."""
    raise ValueError("this engine has no grammar compiler")


def _start_thread(target: Callable[[], None]) -> None:
    before = threading.stack_size(STACK_BYTES)
    try:
        threading.Thread(target=target, name="compile", daemon=True).start()
    finally:
        threading.stack_size(before)
