"""A checkpoint, opened: everything that a file or folder says about a model, as values and views."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from octavo.models.spec import ModelSpec
from octavo.models.tensors import TensorSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What is needed to build a tokenizer: either a Hugging Face `tokenizer.json`, or the tables of a GGUF file."""

    tokenizer_json: bytes | None = None
    kind: str = ""
    """GGUF `tokenizer.ggml.model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece)."""
    pre: str = ""
    """GGUF `tokenizer.ggml.pre`: how text is cut before BPE."""
    tokens: tuple[str, ...] = ()
    token_types: tuple[int, ...] = ()
    """GGUF's: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte."""
    scores: tuple[float, ...] = ()
    merges: tuple[str, ...] = ()
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    """All ids that end an answer: eos, eot, and those of generation_config.json."""
    unk_token_id: int | None = None
    pad_token_id: int | None = None
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = True
    chat_template: str | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict[str, str])
    """`bos_token`, `eos_token`, ... by name: what chat templates may use. May be empty for a GGUF: ids say it all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """`spec`, `tensors` are for backends, `vocabulary` for `text`. `fingerprint` is part of every prefix-cache key."""

    name: str
    """For people: the model's own name, or the file's."""
    path: str
    spec: ModelSpec
    tensors: TensorSource
    vocabulary: Vocabulary
    fingerprint: bytes
    """16 bytes that differ where the weights' file differs (size, mtime-free header and sampled content digest)."""
    weight_format: str
    """The most common weight format, for people: `Q4_1`, `BF16`, ..."""
    weight_bytes: int

    def format_as(self, became: str | None) -> str:
        """`weight_format`, and what the weights became in memory where that is something else: `Q4_1`, `F16-int8`."""
        same = became is None or self.weight_format == {"float32": "F32", "bfloat16": "BF16"}.get(became)
        return self.weight_format if same else f"{self.weight_format}-{became}"
