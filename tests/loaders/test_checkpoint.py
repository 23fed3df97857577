"""Checkpoints from both formats: the same weights in canonical order, the same spec, and clear refusals."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.loaders import LoadError, open_checkpoint
from octavo.loaders.dequant import dequantize
from octavo.loaders.source import deinterleave_rows
from octavo.models.checkpoint import Checkpoint
from octavo.models.shapes import tensor_shapes
from octavo.models.tensors import Format, TensorInfo
from tests.gguf_writer import Typed
from tests.tiny import (
    CHAT_TEMPLATE,
    MERGES,
    SPECIAL_TOKENS,
    TinyModel,
    interleave_rows,
    make_tiny,
    tiny_tokens,
    tiny_writer,
    tokenizer_json,
    write_directory,
    write_gguf,
)

K_QUANTS = (Format.Q4_K, Format.Q5_K, Format.Q6_K)


def tiny_of(format_: Format) -> TinyModel:
    if format_ in K_QUANTS:
        return make_tiny(format=format_, hidden_size=256, intermediate_size=256, num_layers=1, head_dim=64)
    return make_tiny(format=format_, tied_output=False)


def assert_same_weights(checkpoint: Checkpoint, model: TinyModel, tolerance: float = 0) -> None:
    """`tolerance` is relative; where it is not 0, numbers too small for F16's full precision may differ by 2**-24."""
    smallest = 2**-24 if tolerance else 0
    assert list(checkpoint.tensors.names()) == list(tensor_shapes(model.spec)) == list(model.tensors)
    for name in model.tensors:
        info, raw = checkpoint.tensors.info(name), checkpoint.tensors.raw(name)
        assert len(raw) == info.num_bytes
        found = dequantize(raw, info)
        np.testing.assert_allclose(found, model.floats(name), rtol=tolerance, atol=smallest, err_msg=name)


@pytest.mark.parametrize("format_", list(Format))
def test_gguf_delivers_the_weights_in_canonical_order(tmp_path: Path, format_: Format) -> None:
    model = tiny_of(format_)
    checkpoint = open_checkpoint(write_gguf(model, tmp_path / "m.gguf"))
    assert checkpoint.spec == model.spec
    assert checkpoint.weight_format == format_
    assert checkpoint.weight_bytes == sum(info.num_bytes for info, _ in model.tensors.values())
    assert_same_weights(checkpoint, model)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("shards", [1, 3])
def test_folders_deliver_the_weights(tmp_path: Path, dtype: str, shards: int) -> None:
    model = make_tiny(tied_output=False)
    checkpoint = open_checkpoint(write_directory(model, tmp_path / "tiny", dtype=dtype, shards=shards))
    assert checkpoint.spec == model.spec
    assert (checkpoint.name, checkpoint.weight_format) == ("tiny", dtype)
    assert_same_weights(checkpoint, model, {"F32": 0, "F16": 2**-10, "BF16": 2**-8}[dtype])


def test_row_order_is_the_half_split_one() -> None:
    """Rows are (head, half, pair): the stored order of two heads of six is 0 3 1 4 2 5, then the same in the second."""
    stored = bytes([0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11])
    assert interleave_rows(bytes(range(12)), 12, 2) == stored
    assert deinterleave_rows(memoryview(stored), 12, 2) == bytes(range(12))


def test_both_formats_agree_on_the_vocabulary(tmp_path: Path) -> None:
    model = make_tiny()
    tables = open_checkpoint(write_gguf(model, tmp_path / "m.gguf")).vocabulary
    folder = open_checkpoint(write_directory(model, tmp_path / "m")).vocabulary
    assert (tables.kind, tables.pre, tables.merges) == ("gpt2", "gpt-2", MERGES)
    assert tables.tokens[: len(tiny_tokens())] == tiny_tokens()
    assert len(tables.tokens) == len(tables.token_types) == model.spec.vocab_size
    assert json.loads(folder.tokenizer_json or b"") == tokenizer_json()
    for vocabulary in (tables, folder):
        assert (vocabulary.bos_token_id, vocabulary.unk_token_id) == (1, 0)
        assert vocabulary.chat_template == CHAT_TEMPLATE
        assert not vocabulary.add_bos
        assert vocabulary.special_tokens["eos_token"] == SPECIAL_TOKENS[2]
    assert tables.eos_token_ids == (2,)
    assert folder.eos_token_ids == (2, 0), "generation_config.json ends answers with more than the tokenizer's eos"


def test_fingerprints_tell_weights_apart(tmp_path: Path) -> None:
    prints = [
        open_checkpoint(write(make_tiny(seed=seed), tmp_path / f"{index}")).fingerprint
        for index, (write, seed) in enumerate(
            [(write_gguf, 0), (write_gguf, 0), (write_gguf, 1), (write_directory, 0), (write_directory, 1)]
        )
    ]
    assert all(len(value) == 16 for value in prints)
    assert prints[0] == prints[1]
    assert len(set(prints[1:])) == 4


def test_rope_freqs_become_divisors(tmp_path: Path) -> None:
    model = make_tiny(divisors=(1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0))
    assert open_checkpoint(write_gguf(model, tmp_path / "m.gguf")).spec == model.spec


def test_linear_scaling_is_the_same_in_both_formats(tmp_path: Path) -> None:
    model = make_tiny(divisors=(4.0,) * 8)
    plain = replace(model, spec=replace(model.spec, rope=replace(model.spec.rope, divisors=None)))
    scaling = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert open_checkpoint(write_gguf(plain, tmp_path / "m.gguf", **scaling)).spec == model.spec
    assert open_checkpoint(write_directory(model, tmp_path / "m")).spec == model.spec


def test_missing_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    model = make_tiny()
    writer = tiny_writer(model)
    info, raw = writer.tensors.pop("blk.1.ffn_up.weight")
    writer.tensors["blk.0.attn_rot_embd.weight"] = writer.tensors["output_norm.weight"]  # ignored, keeps the count
    with pytest.raises(LoadError, match=r"'blk\.1\.ffn_up\.weight' is missing \(expected shape \[96, 64\]\)"):
        open_checkpoint(writer.write(tmp_path / "a.gguf"))
    writer.tensors["blk.1.ffn_up.weight"] = (TensorInfo((64, 96), info.format), raw)
    with pytest.raises(LoadError, match=r"ffn_up\.weight' has shape \[64, 96\], expected \[96, 64\]"):
        open_checkpoint(writer.write(tmp_path / "b.gguf"))
    model.tensors.pop("layers.0.down")
    with pytest.raises(LoadError, match=r"'model\.layers\.0\.mlp\.down_proj\.weight' is missing"):
        open_checkpoint(write_directory(model, tmp_path / "c", num_hidden_layers=1))


@pytest.mark.parametrize(
    ("tensor", "feature"),
    [
        ("blk.0.attn_q.bias", "bias terms"),
        ("blk.0.attn_q_norm.weight", "QK-norm"),
        ("blk.0.ffn_gate_exps.weight", "mixture of experts"),
        ("blk.7.attn_q.weight", "unknown kind"),
    ],
)
def test_weights_that_nothing_would_read_are_refused(tmp_path: Path, tensor: str, feature: str) -> None:
    writer = tiny_writer(make_tiny())
    writer.tensors[tensor] = writer.tensors["output_norm.weight"]
    with pytest.raises(LoadError, match=f"'{tensor}' is not part of family 'llama': .*{feature}"):
        open_checkpoint(writer.write(tmp_path / "m.gguf"))


REFUSED_METADATA = {
    "split.count": (Typed("u16", 4), "one of 4 parts of a split file"),
    "general.architecture": ("qwen2", "'qwen2' is not supported: it needs bias in attention"),
    "llama.block_count": (900, "900 layers, but there are 20 tensors"),
    "llama.expert_count": (8, "mixture of experts"),
    "llama.rope.scaling.type": ("yarn", "rope scaling of type 'yarn'"),
    "llama.embedding_length": ("64", "must be a whole number"),
    "llama.attention.layer_norm_rms_epsilon": (float("nan"), "must be a number"),
    "tokenizer.ggml.tokens": (["a"] * 289, "289 entries; the model has 288"),
    "tokenizer.ggml.token_type": ([1, 2], "token_type has 2 entries for 288 tokens"),
    "tokenizer.ggml.merges": ([1, 2], "must be a list of str"),
    "tokenizer.ggml.bos_token_id": (288, "bos_token_id is 288; there are 288 tokens"),
    "tokenizer.ggml.model": (3, "must be a string"),
}


@pytest.mark.parametrize("key", REFUSED_METADATA)
def test_metadata_that_cannot_be_used_is_named(tmp_path: Path, key: str) -> None:
    value, message = REFUSED_METADATA[key]
    with pytest.raises(LoadError, match=message) as caught:
        open_checkpoint(write_gguf(make_tiny(), tmp_path / "m.gguf", **{key: value}))
    assert "m.gguf" in str(caught.value)


def test_end_ids_are_all_that_end_an_answer(tmp_path: Path) -> None:
    extra = {
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.eot_token_id": 5,
        "tokenizer.ggml.eom_token_id": 2**32 - 1,
    }
    vocabulary = open_checkpoint(write_gguf(make_tiny(), tmp_path / "m.gguf", **extra)).vocabulary
    assert vocabulary.eos_token_ids == (0, 5, 2), "eos, eot, and the control token <|im_end|>; -1 is none"


def test_sentencepiece_vocabularies_begin_with_bos_and_a_space_unless_they_say_otherwise(tmp_path: Path) -> None:
    writer = tiny_writer(make_tiny())
    writer.metadata["tokenizer.ggml.model"] = "llama"
    for key in ("add_bos_token", "bos_token_id", "eos_token_id", "unknown_token_id"):
        del writer.metadata[f"tokenizer.ggml.{key}"]
    writer.metadata["tokenizer.ggml.scores"] = [-float(i) for i in range(288)]
    vocabulary = open_checkpoint(writer.write(tmp_path / "m.gguf")).vocabulary
    assert vocabulary.add_bos and vocabulary.add_space_prefix
    assert (vocabulary.bos_token_id, vocabulary.eos_token_ids, vocabulary.unk_token_id) == (1, (2,), 0)
    assert vocabulary.scores[3] == -3.0


def spoil(folder: Path, name: str, value: Any) -> None:
    """Replaces one file of a folder by other JSON, or by nothing."""
    if value is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")


BROKEN_FOLDERS = {
    "no config": ("config.json", None, "not a Hugging Face model folder: it has no config.json"),
    "config is no object": ("config.json", [1], "JSON is not as expected"),
    "config is no JSON": ("config.json", "{", "JSON is not as expected"),
    "deep JSON": ("config.json", "[" * 100_000, "JSON is not as expected"),
    "no weights": ("model.safetensors", None, "no safetensors files"),
    "no tokenizer": ("tokenizer.json", None, r"no tokenizer\.json"),
    "eos outside": ("generation_config.json", {"eos_token_id": [5, 288]}, "eos_token_id is 288"),
    "eos no number": ("generation_config.json", {"eos_token_id": "two"}, "eos_token_id is 'two'"),
    "tokenizer of lists": ("tokenizer.json", {"added_tokens": [[]]}, r"tokenizer\.json: its JSON"),
    "unknown architecture": (
        "config.json",
        {"architectures": ["Zz"]},
        r"config\.json: architecture 'Zz' is not supported",
    ),
}


@pytest.mark.parametrize("name", BROKEN_FOLDERS)
def test_broken_folders_are_clear_errors(tmp_path: Path, name: str) -> None:
    folder = write_directory(make_tiny(), tmp_path / "m")
    file, value, message = BROKEN_FOLDERS[name]
    spoil(folder, file, value)
    with pytest.raises(LoadError, match=message):
        open_checkpoint(folder)


def test_a_template_in_a_file_of_its_own_counts_first(tmp_path: Path) -> None:
    folder = write_directory(make_tiny(), tmp_path / "m")
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    spoil(folder, "tokenizer_config.json", {"chat_template": named})
    assert open_checkpoint(folder).vocabulary.chat_template == "D"
    spoil(folder, "chat_template.jinja", "J")
    assert open_checkpoint(folder).vocabulary.chat_template == "J"


def test_a_folder_of_gguf_files_says_what_to_open(tmp_path: Path) -> None:
    write_gguf(make_tiny(), tmp_path / "a.gguf")
    with pytest.raises(LoadError, match=r"it has no config\.json; give the path of a GGUF file in it: a\.gguf"):
        open_checkpoint(tmp_path)


def test_what_is_neither_file_nor_folder_is_called_so(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path(os.devnull)):
        with pytest.raises(LoadError, match="neither a file nor a folder") as caught:
            open_checkpoint(path)
        assert str(caught.value).count(str(path)) == 1


def test_nothing_at_the_path(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no such file or folder"):
        open_checkpoint(tmp_path / "none")
    with pytest.raises(LoadError, match="File name too long"):
        open_checkpoint("x" * 5000)


def test_the_default_model(default_model: Path) -> None:
    checkpoint = open_checkpoint(default_model)
    spec, vocabulary = checkpoint.spec, checkpoint.vocabulary
    assert (spec.num_layers, spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (30, 576, 9, 3, 64)
    assert (spec.vocab_size, spec.intermediate_size, spec.max_model_len) == (49152, 1536, 8192)
    assert spec.tied_output and spec.rope.theta == 100000 and spec.rope.divisors is None
    assert checkpoint.weight_format == "Q4_1"
    assert checkpoint.tensors.info("embed").format == Format.Q8_0
    assert (vocabulary.kind, vocabulary.pre, vocabulary.eos_token_ids) == ("gpt2", "smollm", (2,))
    assert (len(vocabulary.tokens), len(vocabulary.merges)) == (49152, 48900)
