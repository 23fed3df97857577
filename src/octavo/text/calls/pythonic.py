"""Calls that models write as a list of calls in Python, `[f(city="Paris", days=2), g()]`: Llama 3.2, Llama 4."""

import ast
import re
import warnings
from collections.abc import Callable, Set

from octavo.text.calls.reading import Brackets, Call, Said, as_json, first_of

_HEADER = re.compile(r"([A-Za-z_][\w.-]{0,127})\(")
_HEADER_SO_FAR = re.compile(r"([A-Za-z_][\w.-]{0,127})?")
_BEGIN, _END = "<|python_start|>", "<|python_end|>"


class PythonicReader:
    """Reads calls that the text begins with (`reading.Reader`). Each comes at once, when it is complete."""

    def __init__(self, names: Set[str]) -> None:
        self._names = names
        self._state: Callable[[Said], bool] = self._start
        self._held = ""
        self._passed = ""
        self._brackets = Brackets()
        self._looked_at = 0
        self.num_calls = 0
        self.inside = False

    def push(self, text: str) -> Said:
        said = Said()
        self._held += text
        while self._held and self._state(said):
            pass
        return said

    def finish(self) -> str:
        held, self._held = self._passed + self._held, ""
        return "" if self._state == self._after else held

    def _start(self, said: Said) -> bool:
        found = first_of(self._held, [_BEGIN, "["])
        if found is None:
            return False
        if found.literal is None:
            return self._no_more(said)
        self._pass(found.end)
        if found.literal == "[":
            self._state = self._call
        return True

    def _text(self, said: Said) -> bool:
        said.content += self._held
        self._held = ""
        return False

    def _call(self, said: Said) -> bool:
        self._pass(len(self._held) - len(self._held.lstrip()))
        header = _HEADER.match(self._held)
        if header is None:
            return _HEADER_SO_FAR.fullmatch(self._held) is None and self._no_more(said)
        if header[1] not in self._names:
            return self._no_more(said)
        self._brackets, self._looked_at, self._state = Brackets("\"'"), 0, self._arguments
        return True

    def _arguments(self, said: Said) -> bool:
        end = self._brackets.end(self._held[self._looked_at :])
        if end is None:
            self._looked_at = len(self._held)
            return False
        end += self._looked_at
        name, bracket, _ = self._held.partition("(")
        arguments = _arguments_of(bracket + self._held[len(name) + 1 : end])
        if arguments is None:
            return self._no_more(said)
        said.add(Call(self.num_calls, name, arguments))
        self.num_calls += 1
        self._held, self._passed, self._state = self._held[end:], "", self._after
        return True

    def _after(self, said: Said) -> bool:
        found = first_of(self._held, [",", "]", _END])
        if found is None:
            return False
        if found.literal is None:
            return self._no_more(said)
        if found.literal == ",":
            self._pass(found.end)
            self._state = self._call
        else:
            self._held = self._held[found.end :]
        return True

    def _pass(self, end: int) -> None:
        self._passed += self._held[:end]
        self._held = self._held[end:]

    def _no_more(self, said: Said) -> bool:
        said.content += self._passed
        self._passed, self._state = "", self._text
        return True


def _arguments_of(text: str) -> str | None:
    """`(a=1, b="x")` -> `{"a": 1, "b": "x"}`; None where it is no call with literals as keywords."""
    try:
        with warnings.catch_warnings(action="ignore"):
            call = ast.parse(f"f{text}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            return None
        values = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None
    return None if None in values else as_json(values)
