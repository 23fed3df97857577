"""The llama family (Llama 2 and 3, SmolLM2, Mistral, Ministral): configurations to specs, and tensor names.

Sources: the configuration classes of Transformers for keys and defaults; the GGUF specification for metadata keys.
"""

import re
from collections.abc import Mapping, Sequence
from typing import cast

from octavo.models.family import Config, Family
from octavo.models.fields import Fields, ModelError
from octavo.models.rope import linear_divisors, rope_from_config, rope_kind
from octavo.models.spec import ModelSpec, RopeSpec
from octavo.models.windows import windows_from_config, windows_from_gguf

MAX_LAYERS = 1024
MAX_HEAD_DIM = 1024
"""More than any model of the family has: numbers above are a broken file, refused before anything is sized by them."""

MISTRAL_DEFAULTS = {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096}
DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "llama": {"max_position_embeddings": 2048},
    "mistral": MISTRAL_DEFAULTS,
    "ministral": MISTRAL_DEFAULTS,
}
"""What Transformers assumes for keys that a config.json leaves out, where it is not the same for the whole family."""

HF_PARTS: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
GGUF_PARTS: Mapping[str, str] = {
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "ffn_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
HF_TOP = {"embed": "model.embed_tokens.weight", "output_norm": "model.norm.weight", "output": "lm_head.weight"}
GGUF_TOP = {"embed": "token_embd.weight", "output_norm": "output_norm.weight", "output": "output.weight"}
ROPE_FREQS = "rope_freqs.weight"


def hf_name(canonical: str) -> str:
    """`layers.3.q` -> `model.layers.3.self_attn.q_proj.weight`; KeyError for what is no canonical name."""
    if canonical in HF_TOP:
        return HF_TOP[canonical]
    _, index, part = canonical.split(".")
    return f"model.layers.{index}.{HF_PARTS[part]}.weight"


def gguf_name(canonical: str) -> str:
    """`layers.3.q` -> `blk.3.attn_q.weight`; KeyError for what is no canonical name."""
    if canonical in GGUF_TOP:
        return GGUF_TOP[canonical]
    _, index, part = canonical.split(".")
    return f"blk.{index}.{GGUF_PARTS[part]}.weight"


def spec_from_config(values: Config) -> ModelSpec:
    """config.json of a Llama, Mistral or Ministral -> spec; ModelError names what is not supported."""
    kind = Fields(values).text("model_type", "llama")
    config = Fields({**DEFAULTS.get(kind, {}), **values})
    _refuse_config_features(config)
    num_layers, context = config.integer("num_hidden_layers", high=MAX_LAYERS), _max_model_len(config)
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", max(1, hidden // heads), high=MAX_HEAD_DIM)
    spec = ModelSpec(
        architecture=kind,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=config.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        norm_eps=config.number("rms_norm_eps", 1e-6),
        rope=rope_from_config(config, _even(head_dim)),
        max_model_len=context,
        tied_output=config.flag("tie_word_embeddings", False),
        windows=windows_from_config(config, num_layers, context),
    )
    return _checked(spec)


def spec_from_gguf(values: Config, has_output: bool) -> ModelSpec:
    """GGUF metadata of architecture `llama` -> spec. Without `vocab_size` the token list is counted."""
    config = Fields(values, "llama.")
    _refuse_gguf_features(config)
    num_layers, context = config.integer("block_count", high=MAX_LAYERS), config.integer("context_length")
    hidden, heads = config.integer("embedding_length"), _uniform(config, "attention.head_count")
    head_dim = config.integer("attention.key_length", max(1, hidden // heads), high=MAX_HEAD_DIM)
    if config.integer("attention.value_length", head_dim) != head_dim:
        raise ModelError("attention with values of another length than keys is not supported")
    spec = ModelSpec(
        architecture="llama",
        vocab_size=config.integer("vocab_size", _num_tokens(values)),
        hidden_size=hidden,
        intermediate_size=_uniform(config, "feed_forward_length"),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=_uniform(config, "attention.head_count_kv", heads),
        head_dim=head_dim,
        norm_eps=config.number("attention.layer_norm_rms_epsilon"),
        rope=_gguf_rope(config, _even(head_dim)),
        max_model_len=context,
        tied_output=not has_output,
        windows=windows_from_gguf(config, num_layers, context),
    )
    return _checked(spec)


def _refuse_config_features(config: Fields) -> None:
    """Raises ModelError naming the first feature of a config.json that the decoder does not have."""
    activation = config.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelError(f"activation {activation!r} is not supported (only silu)")
    for key, feature in (
        ("attention_bias", "bias in attention"),
        ("mlp_bias", "bias in the feed-forward"),
        ("rope_interleaved", "interleaved rotary embedding"),
    ):
        if config.flag(key, False):
            raise ModelError(f"{feature} ({key}) is not supported")
    for key in ("num_local_experts", "num_experts", "n_routed_experts"):
        if config.integer(key, 0, low=0) > 0:
            raise ModelError(f"mixture of experts ({key}) is not supported")
    if config.get("quantization_config") is not None:
        method = config.section("quantization_config").text("quant_method", "unknown")
        raise ModelError(f"weights quantised by {method!r} are not supported (use GGUF for quantised weights)")


def _refuse_gguf_features(config: Fields) -> None:
    if config.integer("expert_count", 0, low=0) > 0:
        raise ModelError(f"mixture of experts ({config.prefix}expert_count) is not supported")
    if not config.flag("attention.causal", True):
        raise ModelError("attention in both directions (attention.causal false) is not supported")
    for key in ("embedding_scale", "residual_scale", "attention.scale", "logit_scale"):
        if config.number(key, 1.0) != 1.0:
            raise ModelError(f"scaled activations ({config.prefix}{key}) are not supported")


def _gguf_rope(config: Fields, dim: int) -> RopeSpec:
    rotated = config.integer("rope.dimension_count", dim)
    if rotated != dim:
        raise ModelError(f"rotary embedding of a part of each head ({rotated} of {dim} dimensions) is not supported")
    theta = config.number("rope.freq_base", 10000.0, low=1.0)
    old_factor = config.number("rope.scale_linear", 1.0)
    kind = config.text("rope.scaling.type", "none" if old_factor == 1.0 else "linear")
    if kind == "none":
        return RopeSpec(dim=dim, theta=theta)
    if kind == "linear":
        factor = config.number("rope.scaling.factor", old_factor)
        return RopeSpec(dim=dim, theta=theta, divisors=linear_divisors(dim, factor))
    raise ModelError(f"rope scaling of type {kind!r} is not supported (only none, linear, and rope_freqs)")


def _max_model_len(config: Fields) -> int:
    """Linear scaling stretches the trained positions; llama3 configurations already state the stretched number."""
    trained = config.integer("max_position_embeddings")
    settings = config.section("rope_parameters" if config.get("rope_parameters") else "rope_scaling")
    if rope_kind(settings) != "linear":
        return trained
    return int(min(max(1.0, trained * settings.number("factor")), 2**31 - 1))


def _uniform(config: Fields, key: str, default: int | None = None) -> int:
    """A number that GGUF may also give for each layer: the layers of this family are all alike."""
    if not isinstance(config.get(key), tuple | list):
        return config.integer(key, default)
    value = cast(Sequence[object], config.get(key))
    if len(value) == 0 or any(item != value[0] for item in value):
        raise ModelError(f"layers of different sizes ({config.prefix}{key}) are not supported")
    return Fields({key: value[0]}).integer(key)


def _num_tokens(values: Config) -> int | None:
    tokens = values.get("tokenizer.ggml.tokens")
    return len(cast(tuple[object, ...], tokens)) or None if isinstance(tokens, tuple) else None


def _even(head_dim: int) -> int:
    if head_dim % 2:
        raise ModelError(f"head_dim is {head_dim}; rotary embedding needs an even number")
    return head_dim


def _checked(spec: ModelSpec) -> ModelSpec:
    if spec.num_heads % spec.num_kv_heads:
        raise ModelError(f"{spec.num_heads} attention heads cannot share {spec.num_kv_heads} key-value heads evenly")
    return spec


def _hf_ignored(name: str, spec: ModelSpec) -> bool:
    """Old checkpoints carry the plain rope frequencies; tied ones sometimes carry the embedding twice."""
    return name.endswith(".rotary_emb.inv_freq") or (spec.tied_output and name == HF_TOP["output"])


def _gguf_ignored(name: str, spec: ModelSpec) -> bool:
    return name == ROPE_FREQS or bool(re.fullmatch(r"blk\.\d+\.attn_rot_embd\.weight", name))


def _interleaved_heads(canonical: str, spec: ModelSpec) -> int:
    part = canonical.rpartition(".")[2]
    return {"q": spec.num_heads, "k": spec.num_kv_heads}.get(part, 0)


FEATURES = (
    (r"\.bias$", "bias terms"),
    (r"q_norm|k_norm", "normalised queries and keys (QK-norm)"),
    (r"exp|router", "mixture of experts"),
    (r"qkv", "fused query-key-value weights"),
    (r"post_", "norms after attention or feed-forward"),
    (r"rope_factors|rope_freqs", "rope factors of another kind"),
    (r"lora", "adapter weights inside the checkpoint"),
    (r"scale", "scaled weights"),
)


def extra_feature(name: str) -> str:
    """A guess, from the name of a tensor that the family does not have, at what the checkpoint needs."""
    return next((words for pattern, words in FEATURES if re.search(pattern, name)), "an unknown kind of weight")


LLAMA = Family(
    name="llama",
    spec_from_config=spec_from_config,
    spec_from_gguf=spec_from_gguf,
    hf_name=hf_name,
    gguf_name=gguf_name,
    hf_ignored=_hf_ignored,
    gguf_ignored=_gguf_ignored,
    gguf_interleaved_heads=_interleaved_heads,
    extra_feature=extra_feature,
)
