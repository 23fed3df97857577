"""Trial: a structured output is compiled in a process of its own first, where it may take too long, or end the process.

Threads cannot be ended, and a compiler that recurses too deep ends its process: so neither is tried where others work.
"""

import contextlib
import json
import os
import resource
import select
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING

from octavo.core.structured import Structure, StructuredOutput
from octavo.text.lark import GrammarError

if TYPE_CHECKING:
    from octavo.text.guide import Compiler, LLGuide

CPU_S = 1
"""What one compilation may take, in whole seconds of computing (or up to one more): usual ones take milliseconds."""
WAIT_S = 30.0
"""How long to wait for that on a machine that is busy with other things."""
MEMORY_BYTES = 1 << 30
STACK_BYTES = 8 << 20
"""Whoever compiles what has passed here needs no more than this."""
_MAX_KEPT = 1024
_FIRST_STEPS = 8
_NICE = 10
"""Whoever computes answers goes first."""
_TOO_MUCH = f"it takes more than {CPU_S} s or {MEMORY_BYTES >> 20} MiB to compile: make it smaller or less deep"


class Unfinished(GrammarError):
    """It was not compiled in time, and may be none or a good one: nothing is known."""


class Trial:
    """Tries structured outputs, one at a time, in a process that starts with the first and is replaced when it ends.

    Safe to call from several threads. Verdicts are remembered.
    """

    def __init__(self, wait_s: float = WAIT_S) -> None:
        """`wait_s`: how long to wait for one."""
        self._wait_s = wait_s
        self._turn = threading.Lock()
        self._memory = threading.Lock()
        self._verdicts: OrderedDict[StructuredOutput, str | None] = OrderedDict()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = _nothing

    def check(self, output: StructuredOutput) -> None:
        """Raises GrammarError where it cannot be compiled or takes too much, Unfinished where it is not done in time.

        Waits for others only where it is new.
        """
        if not self.knows(output):
            with self._turn:
                if not self.knows(output):
                    self._remember(output, self._try(output))
        with self._memory:
            verdict = self._verdicts.get(output)
        if verdict is not None:
            raise GrammarError(verdict)

    def knows(self, output: StructuredOutput) -> bool:
        """Was it tried before?"""
        with self._memory:
            if output in self._verdicts:
                self._verdicts.move_to_end(output)
            return output in self._verdicts

    def close(self) -> None:
        """Ends the process, whatever it does: what it was trying is refused. The next check starts another one."""
        process = self._process
        if process is not None:
            process.kill()
        with self._turn:
            self._stop()

    def _remember(self, output: StructuredOutput, verdict: str | None) -> None:
        with self._memory:
            self._verdicts[output] = verdict
            if len(self._verdicts) > _MAX_KEPT:
                self._verdicts.popitem(last=False)

    def _try(self, output: StructuredOutput) -> str | None:
        """What is wrong with it, for good. Raises Unfinished."""
        if self._process is not None and self._process.poll() is not None:
            self._stop()
        process = self._process or self._start()
        stdin, stdout = _pipes(process)
        try:
            stdin.write(json.dumps([output.kind, output.text]).encode() + b"\n")
            stdin.flush()
            if not select.select([stdout], [], [], self._wait_s)[0]:
                self._stop()
                raise Unfinished(f"it was not compiled within {self._wait_s:g} s, on a machine that may be busy")
            answer = stdout.readline()
        except BrokenPipeError:
            answer = b""
        if not answer:
            self._stop()
        return json.loads(answer) if answer else _TOO_MUCH

    def _start(self) -> "subprocess.Popen[bytes]":
        self._process = subprocess.Popen(
            [sys.executable, "-m", "octavo.text.trial"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is the parent's business; this ends with its standard input
        )
        self._end = weakref.finalize(self, _kill, self._process)
        _, stdout = _pipes(self._process)
        if not select.select([stdout], [], [], WAIT_S)[0] or not stdout.readline():
            self._stop()
            raise Unfinished("the process that would compile it does not start")
        return self._process

    def _stop(self) -> None:
        self._process = None
        self._end()
        self._end = _nothing


def _nothing() -> None:
    return


def _pipes(process: "subprocess.Popen[bytes]") -> "tuple[IO[bytes], IO[bytes]]":
    assert process.stdin is not None and process.stdout is not None
    return process.stdin, process.stdout


def _kill(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for pipe in _pipes(process):
        with contextlib.suppress(OSError):  # what it did not read is still to be written, and cannot be
            pipe.close()


# -- in the process ----------------------------------------------------------------------------------------------------


def main() -> None:
    """Says that it is ready, reads structured outputs, a line each, and answers with lines: null, or what is wrong."""
    from octavo.text.guide import Compiler

    compiler = Compiler(ByteVocabulary(), 256)
    os.nice(_NICE)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, MEMORY_BYTES)
    threading.stack_size(STACK_BYTES)
    print("ready", flush=True)
    for line in sys.stdin.buffer:
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + CPU_S + 1)
        thread = threading.Thread(target=_answer, args=(compiler, line))
        thread.start()
        thread.join()


def _limit(what: int, most: int) -> None:
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


class ByteVocabulary:
    """The smallest vocabulary that spells every text."""

    vocab_size = 256
    pieces: Mapping[int, bytes] = {byte: bytes([byte]) for byte in range(256)}

    def is_special(self, token_id: int) -> bool:
        return False

    def encode_continuing(self, text: str) -> list[int]:
        return list(text.encode())


def _begun(guide: "LLGuide") -> str | None:
    """The fault of a guide that cannot take its first steps: some limits are met only there."""
    for _ in range(_FIRST_STEPS):
        mask = int.from_bytes(guide.mask(()), "little")
        guide.accept((mask & -mask).bit_length() - 1)
        if guide.fault is not None or guide.complete:
            break
    return guide.fault


def _answer(compiler: "Compiler", line: bytes) -> None:
    kind, text = json.loads(line)
    try:
        verdict = _begun(compiler.fresh(StructuredOutput(Structure(kind), text)))
    except GrammarError as error:
        verdict = str(error)
    print(json.dumps(verdict), flush=True)


if __name__ == "__main__":
    main()
