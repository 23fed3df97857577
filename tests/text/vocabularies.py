"""Small vocabularies for tests, trained here, each also as a `tokenizer.json` that is spelled out by hand."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from octavo.models.checkpoint import Vocabulary

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden_ids.json").read_text("utf-8"))
CORPUS = (
    "The quick brown fox isn't 12 or 345 years old; it'll be 6789 soon. Don't we've they're I'm\n\n"
    "def f(x):\n    return x ** 2  # naïve café, ÀÉÎ, 日本語 🦊🦊, مرحبا\r\n\tHELLO hello 'S 's\n"
) * 4
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
USER_DEFINED = "<tool>"


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


DIGITS = {"type": "Digits", "individual_digits": True}
PUBLISHED: dict[str, dict[str, Any]] = {
    "smollm": {"pre_tokenizer": sequence(DIGITS, byte_level(use_regex=True))},
    "gpt-2": {"pre_tokenizer": byte_level(use_regex=True)},
    "llama-bpe": {"pre_tokenizer": sequence(split(LLAMA3_PATTERN), byte_level(use_regex=False)), "ignore_merges": True},
    "qwen2": {
        "pre_tokenizer": sequence(split(QWEN2_PATTERN), byte_level(use_regex=False)),
        "normalizer": {"type": "NFC"},
    },
}
"""What the models' own `tokenizer.json` say, for each kind."""


@dataclass(frozen=True)
class Small:
    """One vocabulary in both forms."""

    tables: Vocabulary
    published: bytes

    @property
    def library(self) -> Tokenizer:
        return Tokenizer.from_str(self.published.decode())


@cache
def small_byte_level(pre: str) -> Small:
    """A byte-level vocabulary of 400 tokens; control tokens at the front, one user-defined token at the end."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=list(CONTROLS), show_progress=False
    )
    trained.train_from_iterator([CORPUS], trainer)
    model = json.loads(trained.to_str())["model"]
    tokens = [*sorted(model["vocab"], key=model["vocab"].get), USER_DEFINED]
    merges = [" ".join(merge) for merge in model["merges"]]
    types = [3] * len(CONTROLS) + [1] * (len(tokens) - len(CONTROLS) - 1) + [4]
    facts = PUBLISHED[pre]
    published = tokenizer_json(
        {
            "type": "BPE",
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": merges,
            "ignore_merges": facts.get("ignore_merges", False),
        },
        added={token: kind == 3 for token, kind in zip(tokens, types, strict=True) if kind != 1},
        pre_tokenizer=facts["pre_tokenizer"],
        normalizer=facts.get("normalizer"),
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    )
    tables = Vocabulary(
        kind="gpt2",
        pre=pre,
        tokens=tuple(tokens),
        token_types=tuple(types),
        merges=tuple(merges),
        bos_token_id=1,
        eos_token_ids=(2,),
    )
    return Small(tables, published)


def tokenizer_json(model: dict[str, Any], *, added: dict[str, bool], **parts: Any) -> bytes:
    """A `tokenizer.json` with these parts. `added`: token -> is it a control token?"""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": model["vocab"][token], "content": token, "special": control, **flags}
            for token, control in added.items()
        ],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {"unk_token": None, "fuse_unk": False, "byte_fallback": False, **model},
        **parts,
    }
    return json.dumps(whole).encode()


@cache
def small_sentencepiece() -> Small:
    """A SentencePiece vocabulary in the way of Llama 2: unk, bos, eos, 256 bytes, then pieces by falling score."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    trained.pre_tokenizer = pre_tokenizers.Split(Regex("\u2581"), "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=260, show_progress=False)
    trained.train_from_iterator([CORPUS], trainer)
    learnt = json.loads(trained.to_str())["model"]
    merged = list(dict.fromkeys("".join(merge) for merge in learnt["merges"]))
    characters = [token for token in learnt["vocab"] if len(token) == 1]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *merged, *characters]
    types = (2, 3, 3, *(6,) * 256, *(1,) * (len(merged) + len(characters)))
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(merged) + len(characters))]
    vocab = {token: index for index, token in enumerate(tokens)}
    published = tokenizer_json(
        {
            "type": "BPE",
            "vocab": vocab,
            "merges": [" ".join(pair) for token in merged for pair in halves(token, vocab)],
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
        },
        added={"<unk>": True, "<s>": True, "</s>": True},
        normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, SPACES]},
        decoder={"type": "Sequence", "decoders": [MARKS, {"type": "ByteFallback"}, {"type": "Fuse"}, STRIP]},
        post_processor=WITH_BOS,
    )
    tables = Vocabulary(
        kind="llama",
        pre="default",
        tokens=tuple(tokens),
        token_types=types,
        scores=tuple(scores),
        bos_token_id=1,
        eos_token_ids=(2,),
        unk_token_id=0,
        add_bos=True,
    )
    return Small(tables, published)


SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
MARKS = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
WITH_BOS = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
}


def halves(token: str, vocab: dict[str, int]) -> list[tuple[str, str]]:
    pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
    return sorted((pair for pair in pairs if all(half in vocab for half in pair)), key=lambda pair: vocab[pair[0]])
