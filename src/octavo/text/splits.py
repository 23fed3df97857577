"""How text is cut before byte-pair merging, by the name that a GGUF file gives it: a table of facts, no code.

The patterns are those of the models' published `tokenizer.json`, in the dialect of the `tokenizers` library.
"""

from dataclasses import dataclass

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"

_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_QWEN35 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _SPACES
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One way of cutting. The steps run in the order of the fields; then come bytes."""

    nfc: bool = False
    """Compose characters first (Unicode form NFC)."""
    digits: bool = False
    """Every digit alone, before anything else."""
    pattern: str = ""
    """The matches, and what lies between them, are pieces."""
    gpt2: bool = False
    """GPT-2's own pattern, which the byte-level step of the library carries."""
    ignore_merges: bool = False
    """A piece that is a token as a whole is that token, whatever the merges say."""


_GPT2 = Split(gpt2=True)
_SMOLLM = Split(digits=True, gpt2=True)
_LLAMA_BPE = Split(pattern=_LLAMA3, ignore_merges=True)

SPLITS: dict[str, Split] = {
    "gpt-2": _GPT2,
    "gpt2": _GPT2,
    "phi-2": _GPT2,
    "smollm": _SMOLLM,
    "starcoder": _SMOLLM,
    "refact": _SMOLLM,
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "qwen2": Split(nfc=True, pattern=_QWEN2),
    "qwen35": Split(nfc=True, pattern=_QWEN35),
    "tekken": Split(pattern=_TEKKEN, ignore_merges=True),
}
"""GGUF `tokenizer.ggml.pre` -> Split."""
