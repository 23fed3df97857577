"""Calls that models write as a list of calls in Python, `[f(city="Paris", days=2), g()]`: Llama 3.2, Llama 4."""

import ast
import re
import warnings
from collections.abc import Set

from octavo.text.calls.reading import Brackets, Call, Said, States, as_json, first_of

_HEADER = re.compile(r"([A-Za-z_][\w.-]{0,127})\(")
_HEADER_SO_FAR = re.compile(r"([A-Za-z_][\w.-]{0,127})?")
_BEGIN, _END = "<|python_start|>", "<|python_end|>"


class PythonicReader(States):
    """Reads calls that the text begins with (`reading.Reader`). Each comes at once, when it is complete."""

    inside = False

    def __init__(self, names: Set[str]) -> None:
        super().__init__(names, self._start)

    def finish(self) -> str:
        held, self._held = self._passed + self._held, ""
        return "" if self._state == self._after else held

    def _start(self, said: Said) -> bool:
        found = first_of(self._held, [_BEGIN, "["])
        if found is None:
            return False
        if found.literal is None:
            return self._not_a_call(said)
        self._pass(found.end)
        if found.literal == "[":
            self._state = self._call
        return True

    def _call(self, said: Said) -> bool:
        self._pass_space()
        header = _HEADER.match(self._held)
        if header is None:
            return _HEADER_SO_FAR.fullmatch(self._held) is None and self._not_a_call(said)
        if header[1] not in self._names:
            return self._not_a_call(said)
        self._brackets, self._state = Brackets("\"'"), self._arguments
        return True

    def _arguments(self, said: Said) -> bool:
        end = self._brackets.end_of_all(self._held)
        if end is None:
            return False
        name = self._held.partition("(")[0]
        arguments = _arguments_of(self._held[len(name) : end])
        if arguments is None:
            return self._not_a_call(said)
        said.add(Call(self.num_calls, name, arguments))
        self.num_calls += 1
        self._held, self._passed, self._state = self._held[end:], "", self._after
        return True

    def _after(self, said: Said) -> bool:
        found = first_of(self._held, [",", "]", _END])
        if found is None:
            return False
        if found.literal is None:
            return self._not_a_call(said)
        if found.literal == ",":
            self._pass(found.end)
            self._state = self._call
        else:
            self._held = self._held[found.end :]
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
