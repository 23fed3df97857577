"""TextStream: the tokens of one choice become its text. The only way from ids to text, streamed or not."""

from collections.abc import Sequence
from typing import NamedTuple

from octavo.core.sampling import SamplingParams
from octavo.text.detokenizer import Detokenizer
from octavo.text.stops import stop_strings
from octavo.text.tokenizer import Tokenizer


class TextDelta(NamedTuple):
    """What one push, or the end, adds to the output."""

    text: str
    num_tokens: int
    """How many of the pushed tokens count as output: all, up to the one that completes a stop string. For `usage`."""
    num_spelled: int
    """How many tokens, the oldest first of those not yet spelled, this text accounts for: their logprobs go with it."""
    stop: str | None = None
    """The stop string that ended the output."""


_NOTHING = TextDelta("", 0, 0)


class TextStream:
    """One for each choice: `push` what each step brings, then `finish`. After a stop string both return nothing.

    The texts of all deltas, joined, do not depend on how the tokens came in pieces. Held back is only the beginning of
    a character, which is left out where the answer ends within it, or of a stop string. Where logprobs are asked for,
    whole tokens are held back, so that the tokens that a delta accounts for spell its text.

    A stop string cuts the text before its first character (after its last one with `include_stop_str_in_output`);
    spelled are then the tokens that begin before the cut. It is not looked for in the text of the first `min_tokens`
    tokens. A token that ends the answer (`stop_token`) is counted but neither shown nor spelled, except with
    `include_stop_str_in_output`.
    """

    __slots__ = (
        "_align",
        "_detokenizer",
        "_exempt",
        "_include_stop",
        "_pending",
        "_starts",
        "_state",
        "_stops",
        "stop",
    )

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        pieces = tokenizer.shown_pieces if params.skip_special_tokens else tokenizer.pieces
        self._detokenizer = Detokenizer(pieces)
        self._stops = stop_strings(params.stop)
        self._state = 0
        self._exempt = params.min_tokens
        self._include_stop = params.include_stop_str_in_output
        self._align = params.logprobs is not None
        self._pending = ""
        self._starts: list[tuple[int, bool]] = []
        """Where each token that is not spelled yet begins in `_pending`, and whether a character begins there too."""
        self.stop: str | None = None

    def push(self, token_ids: Sequence[int], *, stop_token: int | None = None) -> TextDelta:
        """The text that these tokens release.

        `stop_token`: the last of them is the token that ended the answer, as `Finished.stop_token` says.
        """
        if self.stop is not None:
            return _NOTHING
        if stop_token is not None and not self._include_stop:
            return self._push_hiding_last(token_ids)
        if self._stops is None and not self._align:
            count = len(token_ids)
            return TextDelta(self._detokenizer.push(token_ids), count, count)
        for count, token_id in enumerate(token_ids, 1):
            stop = self._push_one(token_id)
            if stop is not None:
                return self._cut(stop, count)
        return self._release(len(token_ids))

    def finish(self) -> TextDelta:
        """The text that was still held back. The beginning of a character that never came to its end is no text."""
        if self.stop is not None:
            return _NOTHING
        delta = TextDelta(self._pending, 0, len(self._starts))
        self._pending, self._starts, self._state = "", [], 0
        return delta

    def _push_hiding_last(self, token_ids: Sequence[int]) -> TextDelta:
        shown = token_ids[:-1]
        delta = self.push(shown) if shown else _NOTHING
        return delta if delta.stop is not None else delta._replace(num_tokens=len(token_ids))

    def _push_one(self, token_id: int) -> str | None:
        if self._align:
            self._starts.append((len(self._pending), not self._detokenizer.pending))
        text = self._detokenizer.push((token_id,))
        if self._exempt:
            self._exempt -= 1
            self._pending += text
            return None
        return self._read(text)

    def _read(self, text: str) -> str | None:
        """Takes the text up to the end of a stop string, and says which one."""
        if self._stops is None:
            self._pending += text
            return None
        self._state, length, stop = self._stops.read(self._state, text)
        self._pending += text[:length]
        return stop

    def _cut(self, stop: str, count: int) -> TextDelta:
        self.stop = stop
        end = len(self._pending) if self._include_stop else len(self._pending) - len(stop)
        spelled = sum(start < end for start, _ in self._starts) if self._align else count
        return TextDelta(self._pending[:end], count, spelled, stop)

    def _release(self, count: int) -> TextDelta:
        end = len(self._pending) - (self._stops.depth[self._state] if self._stops else 0)
        spelled = count
        if self._align:
            end, spelled = self._last_boundary(end)
            self._starts = [(start - end, whole) for start, whole in self._starts[spelled:]]
        text, self._pending = self._pending[:end], self._pending[end:]
        return TextDelta(text, count, spelled)

    def _last_boundary(self, end: int) -> tuple[int, int]:
        """The last place up to `end` where both a token and a character end, and how many tokens lie before it."""
        boundaries = [*self._starts, (len(self._pending), not self._detokenizer.pending)]
        for spelled in range(len(boundaries) - 1, -1, -1):
            place, whole = boundaries[spelled]
            if whole and place <= end:
                return place, spelled
        return 0, 0
