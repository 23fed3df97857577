"""A GGUF file as a Checkpoint: spec, tensors under canonical names, and the vocabulary's tables."""

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from octavo.loaders.errors import LoadError, located
from octavo.loaders.gguf import GgufFile, read_gguf
from octavo.loaders.mapped import fingerprint
from octavo.loaders.source import (
    MappedTensors,
    StoredTensor,
    check_layer_count,
    check_no_extras,
    check_tensors,
    main_format,
)
from octavo.models.catalog import family_of
from octavo.models.checkpoint import Checkpoint, Vocabulary
from octavo.models.family import Family
from octavo.models.fields import Fields
from octavo.models.llama import ROPE_FREQS
from octavo.models.shapes import tensor_shapes
from octavo.models.spec import ModelSpec
from octavo.models.tensors import Format

TOKENIZER = "tokenizer.ggml."
UNSET_ID = 2**32 - 1
"""Some writers store -1 for "there is none"."""
END_TOKENS = ("<|eot_id|>", "<|im_end|>", "<|eom_id|>", "<|end_of_turn|>", "<end_of_turn>")
"""Control tokens that end a turn in any vocabulary that has them: many files name only the end of the whole text."""
BOS_KINDS = ("llama3", "llama-v3", "llama-bpe", "falcon3")
"""Pre-tokenizer names of byte-level vocabularies that begin with a BOS unless the file says otherwise."""
DEFAULT_IDS = {"llama": {"bos": 1, "eos": 2, "unknown": 0}}
"""What a vocabulary of this kind means by ids that it does not state."""


def open_gguf(path: Path) -> Checkpoint:
    """Opens one GGUF file. Weights stay on disk until they are read; LoadError says what is wrong or not supported."""
    file = read_gguf(path)
    with located(path):
        return _checkpoint(file)


def _checkpoint(file: GgufFile) -> Checkpoint:
    metadata = Fields(file.metadata)
    _refuse_split(metadata)
    family = family_of(metadata.text("general.architecture"))
    spec = _spec(file, family)
    stored = _stored(file, family, spec)
    infos = [tensor.info for tensor in stored.values()]
    header = bytes(file.view[: file.header_bytes])
    return Checkpoint(
        name=metadata.text("general.name", file.path.stem),
        path=str(file.path),
        spec=spec,
        tensors=MappedTensors(stored),
        vocabulary=_vocabulary(file, spec),
        fingerprint=fingerprint([header], [tensor.view for tensor in stored.values()]),
        weight_format=str(main_format(infos)),
        weight_bytes=sum(info.num_bytes for info in infos),
    )


def _refuse_split(metadata: Fields) -> None:
    count = metadata.integer("split.count", 1, low=0)
    if count > 1:
        raise LoadError(f"one of {count} parts of a split file; join them first (gguf-split --merge)")


def _spec(file: GgufFile, family: Family) -> ModelSpec:
    spec = family.spec_from_gguf(file.metadata, family.gguf_name("output") in file.tensors)
    check_layer_count(spec, len(file.tensors))
    if ROPE_FREQS not in file.tensors:
        return spec
    if spec.rope.divisors is not None:
        raise LoadError(f"both rope scaling in the metadata and {ROPE_FREQS!r}: it is unclear which one holds")
    return replace(spec, rope=replace(spec.rope, divisors=_divisors(file, spec.rope.dim)))


def _divisors(file: GgufFile, dim: int) -> tuple[float, ...]:
    """rope_freqs holds one factor for each pair of dimensions, by which llama.cpp divides the frequency."""
    info = file.tensors[ROPE_FREQS].info
    if info.format is not Format.F32 or info.shape != (dim // 2,):
        raise LoadError(f"tensor {ROPE_FREQS!r} is {info.format} {list(info.shape)}, expected F32 [{dim // 2}]")
    values = struct.unpack(f"<{dim // 2}f", file.raw(ROPE_FREQS))
    if not all(1e-12 <= value <= 1e12 for value in values):
        raise LoadError(f"tensor {ROPE_FREQS!r} has values that cannot divide frequencies")
    return values


def _stored(file: GgufFile, family: Family, spec: ModelSpec) -> dict[str, StoredTensor]:
    names = {canonical: family.gguf_name(canonical) for canonical in tensor_shapes(spec)}
    check_tensors(spec, names, {name: tensor.info for name, tensor in file.tensors.items()})
    check_no_extras(family, (n for n in file.tensors.keys() - names.values() if not family.gguf_ignored(n, spec)))
    return {
        canonical: StoredTensor(file.tensors[name].info, file.raw(name), family.gguf_interleaved_heads(canonical, spec))
        for canonical, name in names.items()
    }


def _vocabulary(file: GgufFile, spec: ModelSpec) -> Vocabulary:
    fields = Fields(file.metadata, TOKENIZER)
    kind, pre = fields.text("model"), fields.text("pre", "")
    tokens = cast(tuple[str, ...], _array(fields, "tokens", str))
    if not 0 < len(tokens) <= spec.vocab_size:
        raise LoadError(f"{TOKENIZER}tokens has {len(tokens)} entries; the model has {spec.vocab_size} token ids")
    ids = {
        name: _token_id(fields, kind, name, len(tokens)) for name in ("bos", "eos", "eot", "eom", "unknown", "padding")
    }
    types = cast(tuple[int, ...], _parallel(fields, "token_type", int, len(tokens)))
    return Vocabulary(
        kind=kind,
        pre=pre,
        tokens=tokens,
        token_types=types,
        scores=cast(tuple[float, ...], _parallel(fields, "scores", float, len(tokens))),
        merges=cast(tuple[str, ...], _array(fields, "merges", str)),
        bos_token_id=ids["bos"],
        eos_token_ids=_end_ids(ids, tokens, types),
        unk_token_id=ids["unknown"],
        pad_token_id=ids["padding"],
        add_bos=fields.flag("add_bos_token", kind == "llama" or pre in BOS_KINDS),
        add_eos=fields.flag("add_eos_token", False),
        add_space_prefix=fields.flag("add_space_prefix", kind == "llama"),
        chat_template=_chat_template(Fields(file.metadata)),
        special_tokens=_special_tokens(ids, tokens),
    )


def _array(fields: Fields, key: str, kind: type) -> tuple[object, ...]:
    """A list of values of one type; empty where the file has none."""
    value = fields.get(key)
    if value is None:
        return ()
    if not isinstance(value, tuple) or (value and type(value[0]) is not kind):
        raise LoadError(f"{TOKENIZER}{key} must be a list of {kind.__name__}")
    return cast(tuple[object, ...], value)


def _parallel(fields: Fields, key: str, kind: type, length: int) -> tuple[object, ...]:
    values = _array(fields, key, kind)
    if values and len(values) != length:
        raise LoadError(f"{TOKENIZER}{key} has {len(values)} entries for {length} tokens")
    return values


def _token_id(fields: Fields, kind: str, name: str, num_tokens: int) -> int | None:
    key = f"{name}_token_id"
    value = fields.get(key)
    if value is None:
        value = DEFAULT_IDS.get(kind, {}).get(name)
    if value is None or value in (UNSET_ID, -1):
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < num_tokens:
        raise LoadError(f"{TOKENIZER}{key} is {value!r}; there are {num_tokens} tokens")
    return value


def _end_ids(ids: dict[str, int | None], tokens: Sequence[str], types: Sequence[int]) -> tuple[int, ...]:
    """eos, eot and eom as the file states them, and control tokens whose text says that they end a turn."""
    stated = [ids[name] for name in ("eos", "eot", "eom")]
    controls = [index for index, type_ in enumerate(types) if type_ == 3 and tokens[index] in END_TOKENS]
    return tuple(dict.fromkeys(index for index in (*stated, *controls) if index is not None))


def _chat_template(fields: Fields) -> str | None:
    template = fields.text("tokenizer.chat_template", "")
    return template or None


def _special_tokens(ids: dict[str, int | None], tokens: Sequence[str]) -> dict[str, str]:
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    found = {name: ids[key] for key, name in names.items()}
    return {name: tokens[index] for name, index in found.items() if index is not None}
