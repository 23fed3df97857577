"""SamplingParams: what a client may ask of the sampler, checked once, here. The mathematics is the backend's."""

# Callers may pass anything, whatever they promised: types are checked at run time too.
# pyright: reportUnnecessaryIsInstance=false

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal

from octavo.core.parameter import ParameterError, shown
from octavo.core.structured import StructuredOutput, StructuredOutputsParams

__all__ = [
    "BOUNDS",
    "Bounds",
    "ParameterError",
    "SamplingParams",
    "StructuredOutput",
    "StructuredOutputsParams",
    "check_token_ids",
]

MAX_LOGPROBS = 128
MAX_CHOICES = 128
MAX_STOPS = 1024
MAX_BAD_WORDS = 1024
MAX_BIAS = 100
_PAIRS: tuple[type[Any], ...] = (tuple, list)
_MAPPINGS: tuple[type[Any], ...] = (Mapping,)
_NO_LISTS: tuple[type[Any], ...] = (str, bytes, Mapping)
MAX_LENGTH_PENALTY = 10
EarlyStopping = bool | Literal["never"]
MAX_TEXT_CHARS, MAX_TEXTS_CHARS = 1_000, 4_096
"""Of one stop string or bad word, and of all: looking for stop strings takes some hundred bytes for each character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen. Names, defaults and meanings are vLLM's.

    Logprobs are of the raw distribution, before temperature, penalties, bias or truncation.
    Raises ParameterError for a value outside its range. Accepts a single string for `stop` and any mapping of
    token id -> bias for `logit_bias`; stores both in canonical, hashable form.
    """

    n: int = 1
    best_of: int | None = None
    """n of this many are returned, best first: beams with `use_beam_search`, else samples by the sum of their logprobs.
    None: n."""
    use_beam_search: bool = False
    """Search for the most likely answers instead of drawing: see `core.beams`."""
    length_penalty: float = 1.0
    """A beam's score is the sum of its logprobs / its number of generated tokens ** this."""
    early_stopping: EarlyStopping = False
    """When a beam search is over: see `core.beams.BeamRules`."""
    temperature: float = 1.0
    """0 is greedy: the arg-max, the lowest id where several are equal."""
    top_p: float = 1.0
    top_k: int = 0
    """Keep the k most likely tokens; 0 or -1 keeps all."""
    typical_p: float = 1.0
    """Keep the tokens whose surprise is nearest to the expected one, of together this share of the probability."""
    min_p: float = 0.0
    """Keep tokens whose probability is at least this share of the best one's."""
    presence_penalty: float = 0.0
    """Counts generated tokens only, as `frequency_penalty` does."""
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    """Counts prompt and generated tokens; > 1 discourages."""
    seed: int | None = None
    """None: the engine draws one and reports it."""
    max_tokens: int | None = 16
    """None: up to the context limit."""
    min_tokens: int = 0
    """Stop tokens cannot be sampled before this many tokens were."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    """How many alternatives to report for each sampled token (0: the sampled one only); None: nothing."""
    prompt_logprobs: int | None = None
    """The same for each prompt token but the first."""
    logit_bias: tuple[tuple[int, float], ...] = field(default=())
    allowed_token_ids: tuple[int, ...] | None = None
    """None: all of the vocabulary."""
    bad_words: tuple[str, ...] = ()
    """Texts that are not generated. Whoever has a tokenizer makes `bad_words_token_ids` of them; an engine has none."""
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    """Sequences that are not generated whole: the last id of one is not drawn after the others."""
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutput | None = None
    """The form that the text must have. Takes a StructuredOutputsParams too."""

    def __post_init__(self) -> None:
        canonical = {
            "stop": (self.stop,) if isinstance(self.stop, str) else _items("stop", self.stop, "strings"),
            "stop_token_ids": _token_ids("stop_token_ids", self.stop_token_ids),
            "logit_bias": _canonical_bias(self.logit_bias),
            "top_k": 0 if self.top_k == -1 else self.top_k,
            "allowed_token_ids": _sorted_ids("allowed_token_ids", self.allowed_token_ids),
            "bad_words": _items("bad_words", self.bad_words, "strings"),
            "bad_words_token_ids": tuple(
                _token_ids("bad_words_token_ids", ids)
                for ids in _items("bad_words_token_ids", self.bad_words_token_ids, "lists of token ids")
            ),
            "structured_outputs": _structured(self.structured_outputs),
        }
        for name, value in canonical.items():
            object.__setattr__(self, name, value)
        _check(self)

    @property
    def width(self) -> int:
        """Choices that are computed at once."""
        return self.best_of or self.n

    @property
    def num_choices(self) -> int:
        """Choices that come out of the engine. Beams come when they are known; of samples the best are chosen later."""
        return self.n if self.use_beam_search else self.width

    @property
    def ranks_samples(self) -> bool:
        """Whether more samples are drawn than are answered with, so that the likeliest are kept."""
        return self.num_choices > self.n

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        """Does the choice depend on the tokens so far?"""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1


def _items(name: str, value: Any, what: str) -> tuple[Any, ...]:
    """The elements of a list; None has none. A text or a mapping is no list, although it can be iterated."""
    if value is None:
        return ()
    if isinstance(value, _NO_LISTS) or not hasattr(value, "__iter__"):
        raise ParameterError(name, value, f"a list of {what}")
    return tuple(value)


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    items = _items(name, value, "token ids")
    return tuple(
        [item if type(item) is int else _integer(f"{name}[{index}]", item) for index, item in enumerate(items)]
    )


def _sorted_ids(name: str, value: Any) -> tuple[int, ...] | None:
    return None if value is None else tuple(sorted(set(_token_ids(name, value))))


def _structured(value: Any) -> StructuredOutput | None:
    if isinstance(value, StructuredOutputsParams):
        return value.output()
    if value is not None and not isinstance(value, StructuredOutput):
        raise ParameterError("structured_outputs", value, "a StructuredOutputsParams, or None")
    return value


def _integer(name: str, value: Any) -> int:
    """Integers of every kind, as numpy's, become the language's own: that is what the wire and the hashes know."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ParameterError(name, value, "a token id, which is an integer")
    return int(value)


def _canonical_bias(bias: Any) -> tuple[tuple[int, float], ...]:
    given = _items("logit_bias", bias.items() if isinstance(bias, _MAPPINGS) else bias, "pairs of token id and number")
    return tuple(sorted(dict(map(_bias_pair, given)).items()))


def _bias_pair(pair: Any) -> tuple[int, float]:
    if not isinstance(pair, _PAIRS) or len(pair) != 2:
        raise ParameterError("logit_bias", pair, "a mapping from token ids to numbers, or a list of such pairs")
    token, value = _bias_token(pair[0]), pair[1]
    if not _is_number(value) or not -MAX_BIAS <= value <= MAX_BIAS:  # some integers are too large for a float
        raise ParameterError(f"logit_bias[{shown(token)}]", value, f"a number between -{MAX_BIAS} and {MAX_BIAS}")
    return token, float(value)


def _bias_token(token: object) -> int:
    """A token id, or one as a text: names in JSON are texts."""
    if isinstance(token, str) and token.isascii() and token.isdigit() and len(token) < 19:
        return int(token)
    return _integer("logit_bias", token)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which numbers a field takes: from `lowest`, or above it, up to `highest`. None: no bound."""

    kind: type[int] | type[float]
    lowest: float | None = None
    highest: float | None = None
    above: bool = False
    """`lowest` itself is not taken."""
    optional: bool = False
    """None is taken too."""

    def __str__(self) -> str:
        noun = "an integer" if self.kind is int else "a number"
        low = "" if self.lowest is None else f"{'above' if self.above else 'from'} {self.lowest}"
        high = "" if self.highest is None else f"up to {self.highest}"
        null = "or null" if self.optional else ""
        return " ".join(word for word in (noun, low, high, null) if word)

    def has(self, value: object) -> bool:
        """Is it one of them? An integer is compared as it is: a float would round it, or be too small for it."""
        if value is None:
            return self.optional
        if isinstance(value, bool) or not isinstance(value, int if self.kind is int else (int, float)):
            return False
        if isinstance(value, float) and not math.isfinite(value):
            return False
        high_enough = self.lowest is None or (value > self.lowest if self.above else value >= self.lowest)
        return high_enough and (self.highest is None or value <= self.highest)


BOUNDS: Mapping[str, Bounds] = {
    "n": Bounds(int, 1, MAX_CHOICES),
    "best_of": Bounds(int, 1, MAX_CHOICES, optional=True),
    "length_penalty": Bounds(float, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY),
    "temperature": Bounds(float, 0, 100),
    "top_p": Bounds(float, 0, 1, above=True),
    "top_k": Bounds(int, 0),
    "typical_p": Bounds(float, 0, 1, above=True),
    "min_p": Bounds(float, 0, 1),
    "presence_penalty": Bounds(float, -2, 2),
    "frequency_penalty": Bounds(float, -2, 2),
    "repetition_penalty": Bounds(float, 0, 100, above=True),
    "seed": Bounds(int, -(2**63), 2**64 - 1, optional=True),
    "max_tokens": Bounds(int, 1, optional=True),
    "min_tokens": Bounds(int, 0),
    "logprobs": Bounds(int, 0, MAX_LOGPROBS, optional=True),
    "prompt_logprobs": Bounds(int, 0, MAX_LOGPROBS, optional=True),
}
"""Fields that are numbers. What else about them must hold together, `_check` knows."""
_FLAGS = ("use_beam_search", "include_stop_str_in_output", "ignore_eos", "skip_special_tokens")


def _check(params: SamplingParams) -> None:
    for name, bounds in BOUNDS.items():
        if not bounds.has(getattr(params, name)):
            raise ParameterError(name, getattr(params, name), str(bounds))
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise ParameterError("min_tokens", params.min_tokens, f"at most max_tokens ({params.max_tokens})")
    _check_texts("stop", params.stop, MAX_STOPS)
    _check_texts("bad_words", params.bad_words, MAX_BAD_WORDS)
    if not all(params.bad_words_token_ids) or len(params.bad_words_token_ids) > 2 * MAX_BAD_WORDS:
        allowed = f"at most {2 * MAX_BAD_WORDS} lists that are not empty"
        raise ParameterError("bad_words_token_ids", params.bad_words_token_ids, allowed)
    for name in _FLAGS:
        if not isinstance(getattr(params, name), bool):
            raise ParameterError(name, getattr(params, name), "true or false")
    if params.allowed_token_ids == ():
        raise ParameterError("allowed_token_ids", (), "a list with at least one token id")
    _check_choosing(params)


_OF_BEAMS: dict[str, tuple[Any, str]] = {"length_penalty": (1, "1"), "early_stopping": (False, "false")}
"""Field -> what it is without a beam search."""
_NOT_OF_BEAMS: dict[str, tuple[tuple[Any, ...], str]] = {
    "temperature": ((0, 1), "0 or 1"),
    "top_p": ((1,), "1"),
    "top_k": ((0,), "0"),
    "typical_p": ((1,), "1"),
    "min_p": ((0,), "0"),
    "presence_penalty": ((0,), "0"),
    "frequency_penalty": ((0,), "0"),
    "repetition_penalty": ((1,), "1"),
    "logit_bias": (((),), "empty"),
    "allowed_token_ids": ((None,), "null"),
    "bad_words": (((),), "empty"),
    "bad_words_token_ids": (((),), "empty"),
    "structured_outputs": ((None,), "null"),
}
"""Field -> what it may be with one: a beam search draws nothing, and ranks answers by what the model itself says."""


def _check_choosing(params: SamplingParams) -> None:
    """Do the fields about the best of several choices go together, and with the others?"""
    if params.best_of is not None and params.best_of < params.n:
        raise ParameterError("best_of", params.best_of, f"at least n ({params.n}), or null")
    if not isinstance(params.early_stopping, bool) and params.early_stopping != "never":
        raise ParameterError("early_stopping", params.early_stopping, 'true, false or "never"')
    if params.use_beam_search:
        for name, (values, allowed) in _NOT_OF_BEAMS.items():
            if getattr(params, name) not in values:
                raise ParameterError(name, getattr(params, name), f"{allowed} with use_beam_search")
    else:
        for name, (value, allowed) in _OF_BEAMS.items():
            if getattr(params, name) != value:
                raise ParameterError(name, getattr(params, name), f"{allowed} without use_beam_search")


def _check_texts(name: str, texts: tuple[Any, ...], most: int) -> None:
    if len(texts) > most:
        raise ParameterError(name, f"{len(texts)} strings", f"at most {most} strings")
    if not all(isinstance(text, str) and text for text in texts):
        raise ParameterError(name, texts, "non-empty strings")
    lengths = [len(text) for text in texts]
    longest, total = max(lengths, default=0), sum(lengths)
    if longest > MAX_TEXT_CHARS:
        raise ParameterError(name, f"one of {longest:,}", f"strings of at most {MAX_TEXT_CHARS:,} characters each")
    if total > MAX_TEXTS_CHARS:
        raise ParameterError(name, f"{total:,}", f"strings of at most {MAX_TEXTS_CHARS:,} characters together")


def check_token_ids(params: SamplingParams, vocab_size: int) -> None:
    """Raises ParameterError where a token id in `params` is not in a vocabulary of `vocab_size`."""
    named = {
        "stop_token_ids": params.stop_token_ids,
        "logit_bias": tuple(token for token, _ in params.logit_bias),
        "allowed_token_ids": params.allowed_token_ids or (),
        "bad_words_token_ids": tuple(token for ids in params.bad_words_token_ids for token in ids),
    }
    for name, ids in named.items():
        for token in ids:
            if not 0 <= token < vocab_size:
                raise ParameterError(name, token, f"a token id from 0 to {vocab_size - 1}")
