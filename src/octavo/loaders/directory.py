"""A folder in the Hugging Face layout as a Checkpoint: config.json, safetensors, tokenizer.json and so on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from octavo.loaders.errors import LoadError, bad_file, located
from octavo.loaders.mapped import fingerprint, read_if_there, read_small
from octavo.loaders.safetensors import SafetensorsFile, decode_json, find_shards, json_object
from octavo.loaders.source import (
    MappedTensors,
    StoredTensor,
    check_layer_count,
    check_no_extras,
    check_tensors,
    main_format,
)
from octavo.models.catalog import FAMILIES, family_of
from octavo.models.checkpoint import Checkpoint, Vocabulary
from octavo.models.family import Family
from octavo.models.fields import Fields
from octavo.models.shapes import tensor_shapes
from octavo.models.spec import ModelSpec

MAX_JSON_BYTES = 16 * 2**20
MAX_TOKENIZER_BYTES = 128 * 2**20
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")

Json = Mapping[str, Any]


class AddedToken(msgspec.Struct, frozen=True):
    id: int
    content: str


class TokenizerFile(msgspec.Struct, frozen=True):
    """The one part of tokenizer.json that is read here; the rest is for the tokenizer."""

    added_tokens: tuple[AddedToken, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Companions:
    """The files around the weights, read."""

    config: Json
    generation: Json
    """generation_config.json; empty where there is none, like `settings`."""
    settings: Json
    """tokenizer_config.json."""
    specials: Mapping[str, str]
    """`bos_token`, ... -> its text."""
    tokenizer: bytes
    """tokenizer.json."""
    added_ids: Mapping[str, int]
    """Text -> id of the tokens that tokenizer.json lists apart."""
    chat_template: str | None


def open_directory(folder: Path) -> Checkpoint:
    """Opens a folder. Weights stay on disk until they are read; LoadError says what is wrong or not supported."""
    config_path = folder / "config.json"
    files = sorted(path.name for path in folder.glob("*.gguf"))
    if not config_path.exists():
        instead = f"; give the path of a GGUF file in it: {', '.join(files)}" if files else ""
        raise bad_file(folder, f"not a Hugging Face model folder: it has no config.json{instead}")
    config_bytes = read_small(config_path, MAX_JSON_BYTES)
    config = cast(Json, decode_json(config_path, config_bytes, dict[str, Any]))
    with located(config_path):
        family = _family(config)
        spec = family.spec_from_config(config)
    shards = find_shards(folder)
    stored = _stored(folder, family, spec, shards)
    companions = _companions(folder, config)
    with located(folder):
        vocabulary = _vocabulary(companions, spec.vocab_size)
    infos = [tensor.info for tensor in stored.values()]
    return Checkpoint(
        name=folder.resolve().name,
        path=str(folder),
        spec=spec,
        tensors=MappedTensors(stored),
        vocabulary=vocabulary,
        fingerprint=fingerprint(
            [config_bytes, *(shard.header for shard in shards)], [tensor.view for tensor in stored.values()]
        ),
        weight_format=str(main_format(infos)),
        weight_bytes=sum(info.num_bytes for info in infos),
    )


def _family(config: Json) -> Family:
    """By the first known of `architectures`; a config that lists none is judged by its `model_type`."""
    listed = config.get("architectures") or [config.get("model_type", "")]
    names = [str(name) for name in cast(Sequence[object], listed)] if isinstance(listed, list) else [str(listed)]
    return family_of(next((name for name in names if name in FAMILIES), names[0]))


def _stored(
    folder: Path, family: Family, spec: ModelSpec, shards: Sequence[SafetensorsFile]
) -> dict[str, StoredTensor]:
    owners = {name: shard for shard in shards for name in shard.entries}
    with located(folder):
        check_layer_count(spec, len(owners))
    names = {canonical: family.hf_name(canonical) for canonical in tensor_shapes(spec)}
    infos = {name: owners[name].info(name) for name in names.values() if name in owners}
    with located(folder):
        check_tensors(spec, names, infos)
        check_no_extras(family, (name for name in owners.keys() - infos.keys() if not family.hf_ignored(name, spec)))
    return {canonical: StoredTensor(infos[name], owners[name].raw(name)) for canonical, name in names.items()}


def _companions(folder: Path, config: Json) -> Companions:
    tokenizer = read_if_there(folder / "tokenizer.json", MAX_TOKENIZER_BYTES)
    if tokenizer is None:
        hint = "; tokenizer.model alone is not supported" if (folder / "tokenizer.model").is_file() else ""
        raise bad_file(folder, f"there is no tokenizer.json{hint}")
    added = decode_json(folder / "tokenizer.json", tokenizer, TokenizerFile).added_tokens
    settings = _optional_json(folder / "tokenizer_config.json")
    return Companions(
        config=config,
        generation=_optional_json(folder / "generation_config.json"),
        settings=settings,
        specials=_special_tokens(settings, _optional_json(folder / "special_tokens_map.json")),
        tokenizer=tokenizer,
        added_ids={token.content: token.id for token in added},
        chat_template=_chat_template(folder, settings),
    )


def _optional_json(path: Path) -> Json:
    return json_object(path, MAX_JSON_BYTES) if path.is_file() else {}


def _vocabulary(files: Companions, vocab_size: int) -> Vocabulary:
    settings = Fields(files.settings)
    return Vocabulary(
        tokenizer_json=files.tokenizer,
        bos_token_id=_special_id(files, "bos_token", vocab_size),
        eos_token_ids=_end_ids(files, vocab_size),
        unk_token_id=_special_id(files, "unk_token", vocab_size),
        pad_token_id=_special_id(files, "pad_token", vocab_size),
        add_bos=settings.flag("add_bos_token", False),
        add_eos=settings.flag("add_eos_token", False),
        chat_template=files.chat_template,
        special_tokens=files.specials,
    )


def _special_tokens(settings: Json, special_map: Json) -> dict[str, str]:
    """Name -> text; a token is a string, or an object with the string as its `content`."""
    found = {name: _token_text(settings.get(name, special_map.get(name))) for name in SPECIAL_TOKENS}
    return {name: text for name, text in found.items() if text is not None}


def _token_text(value: object) -> str | None:
    if isinstance(value, Mapping):
        value = cast(Mapping[str, object], value).get("content")
    return value if isinstance(value, str) else None


def _special_id(files: Companions, name: str, vocab_size: int) -> int | None:
    """What the tokenizer says counts before config.json."""
    own = _own_id(files, name, vocab_size)
    if own is not None:
        return own
    return next(iter(_valid_ids(f"{name}_id", files.config.get(f"{name}_id"), vocab_size)), None)


def _end_ids(files: Companions, vocab_size: int) -> tuple[int, ...]:
    """The tokenizer's eos token, then those of generation_config.json, or of config.json where that is silent."""
    key = "eos_token_id"
    own = _own_id(files, "eos_token", vocab_size)
    stated = files.generation.get(key)
    if stated is None:
        stated = files.config.get(key)
    return tuple(dict.fromkeys((*([] if own is None else [own]), *_valid_ids(key, stated, vocab_size))))


def _own_id(files: Companions, name: str, vocab_size: int) -> int | None:
    """The id of a special token by its text; tokens that were added behind the embedding's last row do not count."""
    found = files.added_ids.get(files.specials.get(name, ""), vocab_size)
    return found if 0 <= found < vocab_size else None


def _valid_ids(key: str, value: object, vocab_size: int) -> list[int]:
    """A token id or a list of them; negative numbers mean that there is none."""
    found: list[int] = []
    for item in cast(list[object], value) if isinstance(value, list) else [value]:
        if item is None or (isinstance(item, int) and item < 0):
            continue
        if not isinstance(item, int) or isinstance(item, bool) or item >= vocab_size:
            raise LoadError(f"{key} is {item!r}; the model has {vocab_size} token ids")
        found.append(item)
    return found


def _chat_template(folder: Path, settings: Json) -> str | None:
    """chat_template.jinja counts before tokenizer_config.json, whose list of templates has one named `default`."""
    separate = read_if_there(folder / "chat_template.jinja", MAX_JSON_BYTES)
    if separate is not None:
        try:
            return separate.decode()
        except UnicodeDecodeError as error:
            raise bad_file(folder / "chat_template.jinja", f"not UTF-8 ({error.reason})") from None
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = [cast(Json, item) for item in cast(list[object], template) if isinstance(item, Mapping)]
        template = next((item.get("template") for item in named if item.get("name") == "default"), None)
    return template if isinstance(template, str) else None
