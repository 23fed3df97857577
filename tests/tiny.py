"""Tiny random llama checkpoints for tests, as GGUF files and as Hugging Face folders with the very same weights.

    model = make_tiny(format="Q4_1", seed=3)                  # weights and tokenizer in memory
    open_checkpoint(write_gguf(model, tmp_path / "m.gguf"))   # one file
    open_checkpoint(write_directory(model, tmp_path / "m"))   # F32 (or dtype="BF16", shards=3) safetensors

`model.floats(name)` is the weight that every correct loader must deliver, in canonical order.
"""

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from octavo.loaders.dequant import LAYOUTS, dequantize
from octavo.models.llama import LLAMA, ROPE_FREQS
from octavo.models.shapes import tensor_shapes
from octavo.models.spec import ModelSpec, RopeSpec
from octavo.models.tensors import Format, TensorInfo
from octavo.models.windows import FULL, SLIDING, Windows
from tests.gguf_writer import GgufWriter

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("t h", "th e", "Ġ the", "i n", "a n", "Ġ a", "e r", "o u", "Ġ w", "l l", "o r", "o n", "e s", "in g", "an d")
TINY_VOCAB_SIZE = 288
"""3 special tokens, 256 bytes, the merges, and unused rows to the next multiple of 32."""
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True)
class TinyModel:
    """`tensors` by canonical name and in canonical row order, in their stored format."""

    spec: ModelSpec
    tensors: dict[str, tuple[TensorInfo, bytes]]

    def floats(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        info, raw = self.tensors[name]
        return dequantize(raw, info)


def make_tiny(
    *,
    format: str = "F32",
    embed_format: str | None = None,
    hidden_size: int = 64,
    intermediate_size: int = 96,
    num_layers: int = 2,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    max_model_len: int = 256,
    tied_output: bool = True,
    theta: float = 10000.0,
    divisors: tuple[float, ...] | None = None,
    windows: Windows = (),
    seed: int = 0,
) -> TinyModel:
    """Random weights of a sensible size; norms are F32, and norm_eps is exact in float32.

    K-quants need `hidden_size` and `intermediate_size` of 256 n, the other quantised formats 32 n.

    `divisors` become the rope_freqs tensor of a GGUF; folders can only hold them where all are equal (linear scaling).
    """
    spec = ModelSpec(
        architecture="llama",
        vocab_size=TINY_VOCAB_SIZE,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=2.0**-17,
        rope=RopeSpec(dim=head_dim, theta=theta, divisors=divisors),
        max_model_len=max_model_len,
        tied_output=tied_output,
        windows=windows,
    )
    rng = np.random.default_rng(seed)
    weights = Format(format)
    formats = {"embed": Format(embed_format or format), "output": Format(embed_format or format)}
    return TinyModel(
        spec,
        {
            name: random_tensor(rng, shape, Format.F32 if len(shape) == 1 else formats.get(name, weights))
            for name, shape in tensor_shapes(spec).items()
        },
    )


def random_tensor(rng: np.random.Generator, shape: tuple[int, ...], format_: Format) -> tuple[TensorInfo, bytes]:
    """Vectors are about 1; matrix elements have a variance of about 1 / columns, whatever the format."""
    info = TensorInfo(shape, format_)
    if len(shape) == 1:
        return info, (1 + 0.1 * rng.standard_normal(shape)).astype(np.float32).tobytes()
    if format_ in (Format.Q4_K, Format.Q5_K, Format.Q6_K):
        return info, _random_k_blocks(rng, info)
    plain = (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
    return info, quantize(plain, GGMLQuantizationType[format_.value]).tobytes()


def _random_k_blocks(rng: np.random.Generator, info: TensorInfo) -> bytes:
    """Random bits, with scales that make elements of a sensible size: no need to quantise anything."""
    blocks = rng.integers(0, 256, info.num_bytes, dtype=np.uint8).view(LAYOUTS[info.format])
    levels, mean_scale = {Format.Q4_K: (16, 32), Format.Q5_K: (32, 32), Format.Q6_K: (64, 64)}[info.format]
    blocks["d"] = np.float16(2 / (levels * mean_scale * np.sqrt(info.shape[-1])))
    if info.format is not Format.Q6_K:
        blocks["dmin"] = blocks["d"] * np.float16(levels / 2)
    return blocks.tobytes()


def write_gguf(model: TinyModel, path: Path, **metadata: Any) -> Path:
    """Writes `model` as converters do: q and k rows interleaved, an own output tensor only where not tied.

    `metadata` entries (dots in their names: pass them with **{...}) replace or add to what is written.
    """
    writer = tiny_writer(model)
    writer.metadata.update(metadata)
    return writer.write(path)


def tiny_writer(model: TinyModel) -> GgufWriter:
    """The file's parts before they are bytes, for tests that spoil one of them."""
    writer = GgufWriter(metadata={**_gguf_model(model.spec), **_gguf_tokenizer()})
    if model.spec.rope.divisors is not None:
        divisors = model.spec.rope.divisors
        info = TensorInfo((len(divisors),), Format.F32)
        writer.tensors[ROPE_FREQS] = (info, struct.pack(f"<{len(divisors)}f", *divisors))
    for name, (info, raw) in model.tensors.items():
        heads = LLAMA.gguf_interleaved_heads(name, model.spec)
        stored = interleave_rows(raw, info.shape[0], heads) if heads else raw
        writer.tensors[LLAMA.gguf_name(name)] = (info, stored)
    return writer


def interleave_rows(raw: bytes, num_rows: int, num_heads: int) -> bytes:
    """Canonical row order -> GGUF's, by numpy: rows [heads, half, pair] become [heads, pair, half]."""
    rows = np.frombuffer(raw, np.uint8).reshape(num_heads, 2, num_rows // num_heads // 2, -1)
    return np.ascontiguousarray(rows.swapaxes(1, 2)).tobytes()


def write_directory(model: TinyModel, folder: Path, *, dtype: str = "F32", shards: int = 1, **config: Any) -> Path:
    """Writes `model` in the Hugging Face layout; `config` entries replace or add to config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", {**hf_config(model.spec, dtype), **config})
    _write_json(folder / "tokenizer.json", tokenizer_json())
    _write_json(
        folder / "tokenizer_config.json",
        {
            "bos_token": SPECIAL_TOKENS[1],
            "eos_token": {"content": SPECIAL_TOKENS[2], "special": True},
            "unk_token": SPECIAL_TOKENS[0],
            "chat_template": CHAT_TEMPLATE,
            "add_bos_token": False,
        },
    )
    _write_json(folder / "generation_config.json", {"eos_token_id": [2, 0]})
    entries = {LLAMA.hf_name(name): _as_dtype(model.floats(name), dtype) for name in model.tensors}
    _write_shards(folder, entries, dtype, shards)
    return folder


def hf_config(spec: ModelSpec, dtype: str = "F32") -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.rope.theta,
        "max_position_embeddings": spec.max_model_len,
        "tie_word_embeddings": spec.tied_output,
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[dtype],
    }
    if spec.rope.divisors is not None:
        assert len(set(spec.rope.divisors)) == 1, "config.json has no words for these divisors"
        config["rope_scaling"] = {"rope_type": "linear", "factor": spec.rope.divisors[0]}
        config["max_position_embeddings"] = int(spec.max_model_len / spec.rope.divisors[0])
    if spec.windows:
        config |= {"architectures": ["MinistralForCausalLM"], "model_type": "ministral"}
        config["sliding_window"] = next(window for window in spec.windows if window is not None)
        config["layer_types"] = [FULL if window is None else SLIDING for window in spec.windows]
    return config


def byte_alphabet() -> tuple[str, ...]:
    """The 256 characters that stand for bytes in byte-level BPE (GPT-2): printable ones as they are."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))


def tiny_tokens() -> tuple[str, ...]:
    """The vocabulary by id: special tokens, bytes, merges."""
    return (*SPECIAL_TOKENS, *byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES))


def tokenizer_json() -> dict[str, Any]:
    """A byte-level BPE tokenizer in the form of the `tokenizers` package, with GPT-2's way of cutting text."""
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    special = [
        {"id": index, "content": text, "special": True, **dict.fromkeys(flags, False)}
        for index, text in enumerate(SPECIAL_TOKENS)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: index for index, token in enumerate(tiny_tokens())},
            "merges": list(MERGES),
            "dropout": None,
            "unk_token": None,
            "byte_fallback": False,
        },
    }


def _gguf_model(spec: ModelSpec) -> dict[str, Any]:
    return {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": spec.num_layers,
        "llama.context_length": spec.max_model_len,
        "llama.embedding_length": spec.hidden_size,
        "llama.feed_forward_length": spec.intermediate_size,
        "llama.attention.head_count": spec.num_heads,
        "llama.attention.head_count_kv": spec.num_kv_heads,
        "llama.attention.key_length": spec.head_dim,
        "llama.attention.value_length": spec.head_dim,
        "llama.attention.layer_norm_rms_epsilon": spec.norm_eps,
        "llama.rope.freq_base": spec.rope.theta,
        "llama.rope.dimension_count": spec.rope.dim,
        "llama.vocab_size": spec.vocab_size,
        **_gguf_windows(spec.windows),
    }


def _gguf_windows(windows: Windows) -> dict[str, Any]:
    if not windows:
        return {}
    return {
        "llama.attention.sliding_window": next(window for window in windows if window is not None),
        "llama.attention.sliding_window_pattern": tuple(window is not None for window in windows),
    }


def _gguf_tokenizer() -> dict[str, Any]:
    tokens = [*tiny_tokens()]
    unused = [f"[unused{index}]" for index in range(TINY_VOCAB_SIZE - len(tokens))]
    kinds = [3] * len(SPECIAL_TOKENS) + [1] * (len(tokens) - len(SPECIAL_TOKENS)) + [5] * len(unused)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens + unused,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _as_dtype(values: np.ndarray[Any, np.dtype[np.float32]], dtype: str) -> tuple[tuple[int, ...], bytes]:
    format_ = {"F32": "F32", "F16": "F16", "BF16": "BF16"}[dtype]
    raw = values if format_ == "F32" else quantize(values, GGMLQuantizationType[format_])
    assert raw.nbytes == TensorInfo(values.shape, Format(format_)).num_bytes
    return values.shape, raw.tobytes()


def _write_shards(folder: Path, entries: dict[str, tuple[tuple[int, ...], bytes]], dtype: str, shards: int) -> None:
    names = list(entries)
    if shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(entries, dtype))
        return
    weight_map = {name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(names)}
    for file in sorted(set(weight_map.values())):
        part = {name: entries[name] for name in names if weight_map[name] == file}
        (folder / file).write_bytes(safetensors_bytes(part, dtype))
    _write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def safetensors_bytes(entries: dict[str, tuple[tuple[int, ...], bytes]], dtype: str) -> bytes:
    """One file with all `entries` (name -> shape and bytes) of one dtype, one behind the other."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (shape, raw) in entries.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(raw)]}
        offset += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(raw for _, raw in entries.values())


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
