"""Stop strings: found wherever they lie in the text, holding back only what may be the beginning of one.

Which one wins: the text is read character by character, and the first stop string to be complete ends it; of those
that are complete at the same character, the longest. So the result does not depend on how the text came in pieces,
and nothing waits for a stop string that is still possible when another one is there already. For one stop string this
is `str.find`.
"""

from collections import deque
from functools import lru_cache


class StopStrings:
    """An Aho-Corasick automaton: one state for each prefix of a stop string, the root being the empty one.

    The state after a text is the longest of its suffixes that is a prefix of a stop string, so `depth[state]` is the
    number of characters to hold back, and no fewer would do. Immutable, shared by all requests with the same strings.
    """

    __slots__ = ("_fail", "_goto", "_start", "_stop", "depth")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._goto: list[dict[str, int]] = [{}]
        self._stop: list[str | None] = [None]
        self.depth = [0]
        for stop in stops:
            self._insert(stop)
        self._fail = [0] * len(self._goto)
        self._link()
        self._start = self._goto[0].keys()

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self._goto[state]:
                self._goto[state][character] = len(self._goto)
                self._goto.append({})
                self._stop.append(None)
                self.depth.append(self.depth[state] + 1)
            state = self._goto[state][character]
        self._stop[state] = stop

    def _link(self) -> None:
        """Sets, in order of depth, where each state goes on when its next character is not one of its own."""
        todo = deque(self._goto[0].values())
        while todo:
            state = todo.popleft()
            for character, child in self._goto[state].items():
                fail = self._fail[child] = self._step(self._fail[state], character)
                self._stop[child] = self._stop[child] or self._stop[fail]
                todo.append(child)

    def _step(self, state: int, character: str) -> int:
        goto, fail = self._goto, self._fail
        while state and character not in goto[state]:
            state = fail[state]
        return goto[state].get(character, 0)

    def read(self, state: int, text: str) -> tuple[int, int, str | None]:
        """Reads on from `state`: the new state, how many characters were read, and the stop string that ended it.

        All of the text is read unless a stop string is complete; then it ends with the last character that was read.
        """
        if not state and self._start.isdisjoint(text):
            return 0, len(text), None
        for index, character in enumerate(text):
            state = self._step(state, character)
            stop = self._stop[state]
            if stop is not None:
                return state, index + 1, stop
        return state, len(text), None


@lru_cache(maxsize=16)
def stop_strings(stops: tuple[str, ...]) -> StopStrings | None:
    """The matcher of these strings; None where there are none. The empty string is never a stop.

    Kept are few: the choices and prompts of a request share one, and all of `SamplingParams`' size are 20 MB.
    """
    stops = tuple(stop for stop in stops if stop)
    return StopStrings(stops) if stops else None
