"""A Vocabulary made into objects of the `tokenizers` library: from a `tokenizer.json`, or from a GGUF file's tables."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from octavo.models.checkpoint import Vocabulary
from octavo.text.pieces import byte_level_bytes, sentencepiece_bytes
from octavo.text.splits import SPLITS, Split

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

_T = TypeVar("_T")
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5  # GGUF token types


class TokenizerError(ValueError):
    """A vocabulary that no tokenizer can be built from: says what is wrong, and what would do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """A token that is found in the text before anything else is done with it."""

    text: str
    control: bool
    """Has a meaning for the model beyond its letters; hidden by `skip_special_tokens`."""
    lstrip: bool = False
    """Takes the white space before it along."""
    rstrip: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a Tokenizer is made of. Both library objects share one model."""

    parsing: "Library"
    """Finds control tokens in text."""
    plain: "Library"
    """Takes what looks like a control token for text."""
    continuing: "Library"
    """As `plain`, for text that is not the beginning of a prompt."""
    added: Mapping[int, Added]
    size: int
    """One more than the highest token id."""
    token: Callable[[int], str | None]
    """The token as the vocabulary writes it; None for an id without one."""
    to_bytes: Callable[[str], bytes]
    drops_space: bool
    """A decoded text does not begin with the space that the vocabulary puts before its first word."""


def build_parts(vocabulary: Vocabulary) -> Parts:
    """Raises TokenizerError where the vocabulary is broken, or of a kind that is not known."""
    if vocabulary.tokenizer_json is not None:
        return _from_json(vocabulary.tokenizer_json)
    build = _KINDS.get(vocabulary.kind)
    if build is None:
        raise TokenizerError(f"tokenizer kind {vocabulary.kind!r} is not supported; known: {', '.join(_KINDS)}")
    if not vocabulary.tokens:
        raise TokenizerError("the file has no tokens (tokenizer.ggml.tokens)")
    return build(vocabulary)


# --- GGUF tables ------------------------------------------------------------------------------------------------------


def _byte_level(vocabulary: Vocabulary) -> Parts:
    from tokenizers import models

    split = SPLITS.get(vocabulary.pre)
    if split is None:
        known = ", ".join(sorted(SPLITS))
        raise TokenizerError(f"pre-tokenizer {vocabulary.pre!r} (tokenizer.ggml.pre) is not supported; known: {known}")
    merges = _pairs(vocabulary.merges)
    model = guarded(
        lambda: models.BPE(vocab=_ids(vocabulary.tokens), merges=merges, ignore_merges=split.ignore_merges), "merges"
    )
    return _assemble(vocabulary, model, _normalizer(split), _pre_tokenizer(split), byte_level_bytes, drops_space=False)


def _sentencepiece(vocabulary: Vocabulary) -> Parts:
    """BPE over the whole text with `▁` for spaces. Merges follow from the scores, as in Hugging Face's conversion."""
    from tokenizers import models, normalizers

    ids = _ids(vocabulary.tokens)
    if vocabulary.merges:
        merges = _pairs(vocabulary.merges)
    elif len(vocabulary.scores) == len(vocabulary.tokens):
        merges = merges_by_score(ids, vocabulary.scores)
    else:
        raise TokenizerError(f"{len(vocabulary.tokens)} tokens but {len(vocabulary.scores)} scores, and no merges")
    unknown = None if vocabulary.unk_token_id is None else _token_at(vocabulary, vocabulary.unk_token_id)
    model = guarded(
        lambda: models.BPE(vocab=ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True), "merges"
    )
    spaces = normalizers.Replace(" ", "\u2581")
    prefixed = normalizers.Sequence([normalizers.Prepend("\u2581"), spaces])
    normalizer = prefixed if vocabulary.add_space_prefix else spaces
    return _assemble(vocabulary, model, normalizer, None, sentencepiece_bytes, drops_space=vocabulary.add_space_prefix)


_KINDS: dict[str, Callable[[Vocabulary], Parts]] = {"gpt2": _byte_level, "llama": _sentencepiece}
"""GGUF `tokenizer.ggml.model` -> how it is built."""


def merges_by_score(ids: Mapping[str, int], scores: tuple[float, ...]) -> list[tuple[str, str]]:
    """All ways to make one token of two: those of the best token first, and of one token by the id of the left half.

    That is the order of the merges in the `tokenizer.json` files that were made from SentencePiece models.
    """
    found: list[tuple[float, int, int, str, str]] = []
    for token, token_id in ids.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                found.append((-scores[token_id], token_id, ids[left], left, right))
    found.sort()
    return [(left, right) for _, _, _, left, right in found]


def _assemble(
    vocabulary: Vocabulary,
    model: Any,
    normalizer: Any,
    pre_tokenizer: Any,
    to_bytes: Callable[[str], bytes],
    *,
    drops_space: bool,
) -> Parts:
    added = _added_by_type(vocabulary)
    parsing = _library(model, normalizer, pre_tokenizer, added)
    plain = _library(model, normalizer, pre_tokenizer, added, parse_control=False)
    unused = {i for i, kind in enumerate(vocabulary.token_types) if kind == _UNUSED}
    tokens = vocabulary.tokens
    return Parts(
        parsing=parsing,
        plain=plain,
        continuing=plain,
        added=added,
        size=len(tokens),
        token=lambda token_id: None if token_id in unused else tokens[token_id],
        to_bytes=to_bytes,
        drops_space=drops_space,
    )


def _added_by_type(vocabulary: Vocabulary) -> dict[int, Added]:
    types = vocabulary.token_types
    if types and len(types) != len(vocabulary.tokens):
        raise TokenizerError(f"{len(vocabulary.tokens)} tokens but {len(types)} token types")
    control = {_UNKNOWN, _CONTROL}
    return {
        token_id: Added(text=vocabulary.tokens[token_id], control=kind in control)
        for token_id, kind in enumerate(types)
        if (kind in control or kind == _USER_DEFINED) and vocabulary.tokens[token_id]
    }


def _library(
    model: Any, normalizer: Any, pre_tokenizer: Any, added: Mapping[int, Added], *, parse_control: bool = True
) -> "Library":
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Library

    library = Library(model)
    if normalizer is not None:
        library.normalizer = normalizer
    if pre_tokenizer is not None:
        library.pre_tokenizer = pre_tokenizer
    library.add_tokens(
        [
            AddedToken(token.text, special=token.control, normalized=False, lstrip=token.lstrip, rstrip=token.rstrip)
            for _, token in sorted(added.items())
        ]
    )
    library.encode_special_tokens = not parse_control
    return library


def _normalizer(split: Split) -> Any:
    from tokenizers import normalizers

    return normalizers.NFC() if split.nfc else None


def _pre_tokenizer(split: Split) -> Any:
    from tokenizers import Regex, pre_tokenizers

    steps: list[Any] = []
    if split.digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if split.pattern:
        steps.append(pre_tokenizers.Split(Regex(split.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.gpt2))
    return pre_tokenizers.Sequence(steps)


def _ids(tokens: tuple[str, ...]) -> dict[str, int]:
    """token -> id; the first one where a token is there twice."""
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        for token_id in range(len(tokens) - 1, -1, -1):
            ids[tokens[token_id]] = token_id
    return ids


def _pairs(merges: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]


def _token_at(vocabulary: Vocabulary, token_id: int) -> str:
    if not 0 <= token_id < len(vocabulary.tokens):
        raise TokenizerError(f"token id {token_id} is not among the {len(vocabulary.tokens)} tokens")
    return vocabulary.tokens[token_id]


def guarded(build: Callable[[], _T], what: str) -> _T:
    """`build()`, with the library's failures as TokenizerError: it raises bare Exceptions, and panics on some files."""
    try:
        return build()
    except TokenizerError:
        raise
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise TokenizerError(f"broken {what}: {error}") from error
        raise


# --- tokenizer.json ---------------------------------------------------------------------------------------------------


def _from_json(source: bytes) -> Parts:
    from tokenizers import Tokenizer as Library

    parsing: Library = guarded(lambda: Library.from_str(source.decode()), "tokenizer.json")
    parsing.no_padding()
    parsing.no_truncation()
    to_bytes, drops_space = _decoding(state_of(parsing.decoder))
    added = {
        token_id: Added(text=token.content, control=token.special, lstrip=token.lstrip, rstrip=token.rstrip)
        for token_id, token in parsing.get_added_tokens_decoder().items()
    }
    plain = _twin(parsing, parsing.pre_tokenizer)
    pre_tokenizer = state_of(parsing.pre_tokenizer)
    unprefixed = _without_first_prefix(pre_tokenizer)
    continuing = plain if unprefixed == pre_tokenizer else _twin(parsing, _pre_tokenizer_of(unprefixed))
    return Parts(
        parsing=parsing,
        plain=plain,
        continuing=continuing,
        added=added,
        size=max(parsing.get_vocab_size(with_added_tokens=True), 1 + max(added, default=-1)),
        token=parsing.id_to_token,
        to_bytes=to_bytes,
        drops_space=drops_space,
    )


def _twin(library: "Library", pre_tokenizer: Any) -> "Library":
    """The same model and added tokens, but control tokens are text. A new library object where ids would differ."""
    from tokenizers import Tokenizer as Library

    added = library.get_added_tokens_decoder()
    twin = Library(library.model)
    twin.add_tokens([token for _, token in sorted(added.items())])
    if any(twin.token_to_id(token.content) != token_id for token_id, token in added.items()):
        twin = Library.from_str(library.to_str())
    if library.normalizer is not None:
        twin.normalizer = library.normalizer
    if pre_tokenizer is not None:
        twin.pre_tokenizer = pre_tokenizer
    twin.encode_special_tokens = True
    return twin


def state_of(component: Any) -> dict[str, Any]:
    """What a component of the library would be in a `tokenizer.json`."""
    return {} if component is None else json.loads(component.__getstate__())


def _decoding(decoder: dict[str, Any]) -> tuple[Callable[[str], bytes], bool]:
    """How tokens become bytes, and whether the first space is left out, read from the decoder's description."""
    steps = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    types = {step.get("type") for step in steps}
    if "ByteLevel" in types:
        return byte_level_bytes, False
    if types & {"Metaspace", "ByteFallback", "Replace"}:
        return sentencepiece_bytes, any(_strips_first_space(step) for step in steps)
    raise TokenizerError(
        f"tokenizer.json: decoder {decoder.get('type')!r} is not supported; known: ByteLevel, Metaspace,"
        " and sequences with Replace or ByteFallback"
    )


def _strips_first_space(step: Mapping[str, Any]) -> bool:
    match step:
        case {"type": "Strip", "content": " ", "start": int(start)}:
            return start > 0
        case {"type": "Metaspace"}:
            return step.get("prepend_scheme", "always") != "never"
    return False


def _without_first_prefix(component: Any) -> Any:
    """The pre-tokenizer's description, such that no space is put before the first word of a text alone."""
    if isinstance(component, dict):
        changed = {key: _without_first_prefix(value) for key, value in component.items()}
        return changed | {"prepend_scheme": "never"} if changed.get("prepend_scheme") == "first" else changed
    if isinstance(component, list):
        return [_without_first_prefix(item) for item in component]
    return component


def _pre_tokenizer_of(state: dict[str, Any]) -> Any:
    from tokenizers import Tokenizer as Library
    from tokenizers import models

    description = json.loads(Library(models.BPE()).to_str()) | {"pre_tokenizer": state}
    return Library.from_str(json.dumps(description)).pre_tokenizer
