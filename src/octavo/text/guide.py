"""Guides: a grammar compiled for a vocabulary, and the state of one answer in it. The work is llguidance's."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, Protocol

import llguidance

from octavo.core.structured import StructuredOutput
from octavo.core.types import TokenId
from octavo.text.grammar import readable, source_of
from octavo.text.lark import GrammarError

_MAX_KEPT = 64
"""Compiled structured outputs that are kept for whoever asks for the same."""


_LIMITS: Mapping[str, Any] = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_items_in_row": 5_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 500_000,
    "verbose_errors": False,
}
"""llguidance's own units: some 20 ms to compile, 15 ms for a token and 100 MB in all at the very most."""


class Spelling(Protocol):
    """What a `text.tokenizer.Tokenizer` knows that matters here."""

    vocab_size: int

    @property
    def pieces(self) -> Mapping[TokenId, bytes]: ...

    def is_special(self, token_id: TokenId) -> bool: ...

    def encode_continuing(self, text: str) -> list[TokenId]: ...


class Compiler:
    """Compiles structured outputs for one vocabulary. Safe to call from several threads."""

    def __init__(self, tokenizer: Spelling, vocab_size: int) -> None:
        """`vocab_size` is the number of logits, which may be more than the tokenizer has ids, or fewer."""
        self._vocabulary = llguidance.LLTokenizer(_Vocabulary(tokenizer, vocab_size), n_vocab=vocab_size + 1)  # pyright: ignore[reportArgumentType]
        self._vocab_size = vocab_size
        self._kept: OrderedDict[StructuredOutput, LLGuide] = OrderedDict()
        self._lock = Lock()

    def compile(self, output: StructuredOutput) -> "LLGuide":
        """A guide at the beginning of an answer. Raises GrammarError."""
        with self._lock:
            guide = self._kept.get(output)
            if guide is not None:
                self._kept.move_to_end(output)
                return guide.fork()
        guide = self.fresh(output)
        with self._lock:
            self._kept[output] = guide
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
            return guide.fork()

    def fresh(self, output: StructuredOutput) -> "LLGuide":
        """The same, compiled now and not kept. Raises GrammarError."""
        limits = llguidance.LLParserLimits(**_LIMITS)
        matcher = llguidance.LLMatcher(self._vocabulary, source_of(output), log_level=0, limits=limits)
        if matcher.is_error():
            raise GrammarError(readable(matcher.get_error()))
        for warning in matcher.get_grammar_warnings():
            raise GrammarError(readable(warning))
        guide = LLGuide(matcher, self._vocab_size)
        if guide.fault is not None:
            raise GrammarError(guide.fault)
        if guide.complete:
            raise GrammarError("it allows nothing but an empty answer")
        return guide


class _Vocabulary:
    """Our vocabulary as llguidance wants it: the bytes of each id, and one more id that means the end.

    So the ids that end an answer are not the grammar's business: to it they are control tokens like others.
    """

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Spelling, vocab_size: int) -> None:
        known = range(min(vocab_size, tokenizer.vocab_size))
        self._encode = tokenizer.encode_continuing
        self.eos_token_id = vocab_size
        self.bos_token_id = None
        self.tokens = [tokenizer.pieces[token] for token in known] + [b""] * (vocab_size - len(known)) + [b"<end>"]
        self.special_token_ids = [token for token in known if tokenizer.is_special(token)] + [vocab_size]

    def __call__(self, text: str) -> list[int]:
        """How the model would go on with `text`: where no other text may come, its tokens are these."""
        return self._encode(text)


class LLGuide:
    """A Guide (`core.ports`) that asks llguidance. 30 to 50 us for a token; a fork takes 10."""

    __slots__ = ("_matcher", "_may_end", "_text_mask", "_vocab_size", "complete", "fault")

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self.complete = False
        self.fault: str | None = None
        self._look()

    def mask(self, ends: Sequence[TokenId]) -> bytes:
        if not self._may_end or not ends:
            return self._text_mask
        mask = bytearray(self._text_mask)
        for token in ends:
            mask[token >> 3] |= 1 << (token & 7)
        return bytes(mask)

    def accept(self, token: TokenId) -> None:
        if not self._matcher.consume_token(token):
            self.fault = self._describe(f"the token {token} may not come here")
        else:
            self._look()

    def fork(self) -> "LLGuide":
        twin = object.__new__(LLGuide)
        twin._matcher = self._matcher.deep_copy()
        for name in ("_may_end", "_text_mask", "_vocab_size", "complete", "fault"):
            setattr(twin, name, getattr(self, name))
        return twin

    def _look(self) -> None:
        """Finds out what may come next."""
        matcher = self._matcher
        if not matcher.is_stopped():
            mask = matcher.compute_bitmask()
            self._may_end = matcher.is_accepting()
            self._text_mask = self._without_end(mask)
            if matcher.is_error():
                self.fault = self._describe("")
            elif self._text_mask == bytes(len(self._text_mask)):
                self.complete = self._may_end
                self.fault = None if self._may_end else "no token of the vocabulary can go on from here"
        elif matcher.is_error():
            self.fault = self._describe("")
        else:
            self._may_end, self._text_mask, self.complete = True, b"", True

    def _without_end(self, mask: bytes) -> bytes:
        """The bits of the vocabulary alone."""
        size, odd = divmod(self._vocab_size, 8)
        return mask[:size] + bytes([mask[size] & (1 << odd) - 1]) if odd else mask[:size]

    def _describe(self, otherwise: str) -> str:
        reason = readable(self._matcher.get_error()) or otherwise
        return f"the answer cannot go on in the form of structured_outputs: {reason}"
