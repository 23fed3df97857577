"""Family: the seam between the names and settings of checkpoints and the canonical ones. One value for each family."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from octavo.models.spec import ModelSpec

Config = Mapping[str, object]
"""A parsed config.json, or the metadata of a GGUF file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How checkpoints of one family are read. The functions raise ModelError and never touch a file."""

    name: str
    spec_from_config: Callable[[Config], ModelSpec]
    """config.json -> spec."""
    spec_from_gguf: Callable[[Config, bool], ModelSpec]
    """GGUF metadata, and whether the file has its own output head -> spec (without the divisors of rope_freqs)."""
    hf_name: Callable[[str], str]
    """Canonical tensor name -> the name in Hugging Face checkpoints."""
    gguf_name: Callable[[str], str]
    """Canonical tensor name -> the name in GGUF files."""
    hf_ignored: Callable[[str, ModelSpec], bool]
    """Whether a tensor of a Hugging Face checkpoint, one that the spec does not list, may be left unread."""
    gguf_ignored: Callable[[str, ModelSpec], bool]
    gguf_interleaved_heads: Callable[[str, ModelSpec], int]
    """Canonical name -> the number of heads whose rotary halves GGUF interleaves row by row; 0: none."""
    extra_feature: Callable[[str], str]
    """What an unexpected tensor (by either name) would be good for: the feature that is missing, in words."""
