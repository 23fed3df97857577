r"""Logprobs as clients read them, in the chat, legacy and prompt shapes.

Which tokens a chunk mentions is `TextStream`'s say: those that spell its text. So an answer has the same entries
with and without streaming, and none for tokens of which a stop left nothing to show.
A token is written as its text; as `bytes:\xf0\x9f` where it is no text by itself; as `token_id:7` where asked.
"""

from codecs import utf_8_decode
from collections.abc import Sequence
from typing import Any, Protocol

from octavo.core.plan import ScoredToken

LOWEST = -9999.0
"""What -inf becomes: it is not JSON."""


class Spelling(Protocol):
    """What is needed of a tokenizer to write tokens down."""

    def token_bytes(self, token_id: int) -> bytes: ...
    def token_text(self, token_id: int) -> str: ...
    def is_special(self, token_id: int) -> bool: ...


def finite(value: float | None) -> float:
    """A logprob that JSON can hold."""
    return LOWEST if value is None or value < LOWEST else value


class LogprobWriter:
    """Writes tokens and their logprobs. One for each request."""

    def __init__(self, spelling: Spelling, *, as_ids: bool = False, hide_special: bool = True) -> None:
        self._spelling = spelling
        self._as_ids = as_ids
        self._hide_special = hide_special

    def name(self, token: int) -> str:
        """How a token is called in logprobs."""
        return f"token_id:{token}" if self._as_ids else self._spelling.token_text(token)

    def chat(self, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
        """The `logprobs` of a chat choice or chunk."""
        return {"content": [self._chat_entry(scored) for scored in tokens], "refusal": None}

    def _chat_entry(self, scored: ScoredToken) -> dict[str, Any]:
        top = [self._chat_token(token, value) for token, value in scored.alternatives]
        return {**self._chat_token(scored.token, scored.logprob), "top_logprobs": top}

    def _chat_token(self, token: int, value: float | None) -> dict[str, Any]:
        data = self._spelling.token_bytes(token)
        return {"token": self.name(token), "logprob": finite(value), "bytes": list(data)}

    def legacy(self, tokens: Sequence[ScoredToken], offset: int) -> dict[str, Any]:
        """The `logprobs` of a completion choice or chunk whose text begins at character `offset` of the choice's."""
        return {
            "text_offset": self.offsets([scored.token for scored in tokens], offset),
            "token_logprobs": [finite(scored.logprob) for scored in tokens],
            "tokens": [self.name(scored.token) for scored in tokens],
            "top_logprobs": [self._legacy_top(scored) for scored in tokens],
        }

    def legacy_prompt(self, prompt: Sequence[int], scores: Sequence[ScoredToken]) -> dict[str, Any]:
        """The same for an echoed prompt: nothing was predicted before its first token, which has nulls."""
        first = {
            "text_offset": [0],
            "token_logprobs": [None],
            "tokens": [self.name(prompt[0])],
            "top_logprobs": [None],
        }
        rest = self.legacy(scores, 0)
        rest["text_offset"] = self.offsets(prompt, 0)[1:]
        return joined(first, rest)

    def _legacy_top(self, scored: ScoredToken) -> dict[str, float]:
        """The token itself is always there; ids with equal text do not hide each other."""
        ranked = {**dict(scored.alternatives), scored.token: scored.logprob}
        top: dict[str, float] = {}
        for token, value in ranked.items():
            name = self.name(token)
            top[f"token_id:{token}" if name in top else name] = finite(value)
        return top

    def offsets(self, tokens: Sequence[int], offset: int) -> list[int]:
        """Where each token begins, in characters; the parts of one character begin where it does."""
        starts, tail = [], b""
        for token in tokens:
            starts.append(offset)
            hidden = self._hide_special and self._spelling.is_special(token)
            data = tail if hidden else tail + self._spelling.token_bytes(token)
            text, used = utf_8_decode(data, "replace", False)
            tail = data[used:]
            offset += len(text)
        return starts

    def prompt(self, scores: Sequence[ScoredToken]) -> list[dict[str, Any] | None]:
        """`prompt_logprobs` in vLLM's shape: null for the first token, then id -> logprob, rank and text."""
        return [None, *map(self._prompt_entry, scores)]

    def _prompt_entry(self, scored: ScoredToken) -> dict[str, Any]:
        ranks = {token: rank for rank, (token, _) in enumerate(scored.alternatives, 1)}
        ranked = {**dict(scored.alternatives), scored.token: scored.logprob}
        return {
            str(token): {
                "logprob": finite(value),
                "rank": ranks.get(token, scored.rank),
                "decoded_token": self.name(token),
            }
            for token, value in ranked.items()
        }


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two legacy objects, one after the other."""
    return {key: first[key] + second[key] for key in first}
