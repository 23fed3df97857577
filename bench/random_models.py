"""Models of useful sizes without a download: `python bench/random_models.py 0.5b Q4_0 FILE`. For speed, not for sense.

A GGUF file with the shapes of a small llama-family model and random weights of the sizes that trained ones have, so
that no logit overflows and nothing is sparse. The tokenizer is the default model's, so prompts cost what they cost
there. Any program that reads GGUF files of the architecture `llama` can load it. The same words make the same bytes.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import quantize
from numpy.typing import NDArray

Array = NDArray[Any]
SEED = 7
ROWS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A decoder with tied embeddings; the vocabulary is the tokenizer's."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int = 8192
    rope_theta: float = 100_000.0


SHAPES = {
    "0.5b": Shape(hidden=1024, inner=3584, layers=32, heads=16, kv_heads=4, head_dim=64),
    "1b": Shape(hidden=2048, inner=8192, layers=16, heads=32, kv_heads=8, head_dim=64),
}
"""0.49 and 1.07 billion parameters, with the default model's 49,152 tokens."""


# -- weights ---------------------------------------------------------------------------------------------------------

Draw = Callable[[np.random.Generator, int, int], Array]
"""Rows and columns -> the rows as bytes, or as floats. Elements have a mean of 0, and a variance of 1 / columns."""


def _q4_0(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """Nibbles 1 .. 15, of which 8 means 0."""
    nibbles = rng.integers(1, 16, (2, rows * columns // 32, 16), dtype=np.uint8)
    return _blocks(rng, nibbles[0] | nibbles[1] << 4, rows, columns, deviation=np.sqrt((15**2 - 1) / 12))


def _q8_0(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """Bytes -127 .. 127."""
    quants = rng.integers(-127, 128, (rows * columns // 32, 32), dtype=np.int8).view(np.uint8)
    return _blocks(rng, quants, rows, columns, deviation=np.sqrt((255**2 - 1) / 12))


def _blocks(rng: np.random.Generator, quants: Array, rows: int, columns: int, *, deviation: float) -> Array:
    """An f16 scale before the quants of each block. Scales differ by 10 %, as those of a trained matrix do and more."""
    scales = rng.uniform(0.9, 1.1, len(quants)) / (deviation * np.sqrt(columns))
    return np.hstack([scales.astype(np.float16)[:, None].view(np.uint8), quants]).reshape(rows, -1)


def _bf16(rng: np.random.Generator, rows: int, columns: int) -> Array:
    return quantize(_f32(rng, rows, columns), GGMLQuantizationType.BF16)


def _f32(rng: np.random.Generator, rows: int, columns: int) -> Array:
    return rng.standard_normal((rows, columns), dtype=np.float32) / np.float32(np.sqrt(columns))


FORMATS: dict[str, tuple[GGMLQuantizationType, LlamaFileType, Draw]] = {
    "Q4_0": (GGMLQuantizationType.Q4_0, LlamaFileType.MOSTLY_Q4_0, _q4_0),
    "Q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0, _q8_0),
    "BF16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16, _bf16),
}


def _norm(rng: np.random.Generator, columns: int) -> Array:
    return (1 + 0.1 * rng.standard_normal(columns)).astype(np.float32)


# -- the file --------------------------------------------------------------------------------------------------------


def tensors(shape: Shape, vocab_size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """GGUF's names, and rows and columns of each tensor, or the length of a norm, in the order of a forward pass."""
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "token_embd.weight", (vocab_size, shape.hidden)
    for layer in range(shape.layers):
        parts: dict[str, tuple[int, ...]] = {
            "attn_norm": (shape.hidden,),
            "attn_q": (query, shape.hidden),
            "attn_k": (key, shape.hidden),
            "attn_v": (key, shape.hidden),
            "attn_output": (shape.hidden, query),
            "ffn_norm": (shape.hidden,),
            "ffn_gate": (shape.inner, shape.hidden),
            "ffn_up": (shape.inner, shape.hidden),
            "ffn_down": (shape.hidden, shape.inner),
        }
        yield from ((f"blk.{layer}.{part}.weight", size) for part, size in parts.items())
    yield "output_norm.weight", (shape.hidden,)


def write_model(path: Path, name: str, shape: Shape, format_: str, tokenizer: Path) -> None:
    """Writes the model with the tokenizer of another GGUF file. Never holds more than one tensor."""
    kind, file_type, draw = FORMATS[format_]
    writer = GGUFWriter(path, "llama")
    writer.add_name(f"random {name} {format_}")
    writer.add_file_type(file_type)
    _add_shape(writer, shape)
    vocab_size = _copy_tokenizer(writer, tokenizer)
    writer.add_vocab_size(vocab_size)
    sizes = dict(tensors(shape, vocab_size))
    for tensor, size in sizes.items():
        of_tensor = kind if len(size) == 2 else GGMLQuantizationType.F32
        elements, num_bytes = GGML_QUANT_SIZES[of_tensor]
        total = int(np.prod(size)) // elements * num_bytes
        writer.add_tensor_info(tensor, size, np.dtype(np.float32), total, raw_dtype=of_tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(SEED)
    for size in sizes.values():
        writer.write_tensor_data(_norm(rng, *size) if len(size) == 1 else _matrix(rng, draw, *size))
    writer.close()


def _matrix(rng: np.random.Generator, draw: Draw, rows: int, columns: int) -> Array:
    """Some rows at a time: what is drawn takes more memory than what is kept."""
    firsts = range(0, rows, ROWS_AT_ONCE)
    return np.concatenate([draw(rng, min(ROWS_AT_ONCE, rows - first), columns) for first in firsts])


def _add_shape(writer: GGUFWriter, shape: Shape) -> None:
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(1e-5)


def _copy_tokenizer(writer: GGUFWriter, source: Path) -> int:
    """All metadata about text, as it is there. Returns how many tokens there are."""
    fields = GGUFReader(source).fields
    for key, field in fields.items():
        if key.startswith("tokenizer."):
            of_array = field.types[-1] if field.types[0] is GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=of_array)
    return len(fields["tokenizer.ggml.tokens"].data)


def main() -> None:
    from octavo.loaders.hub import default_model_path

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("format", choices=FORMATS)
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    write_model(options.file, options.shape, SHAPES[options.shape], options.format, default_model_path())
    print(options.file)


if __name__ == "__main__":
    main()
