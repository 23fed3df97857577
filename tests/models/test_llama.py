"""Configurations of the llama family: the specs of real models, and every feature that is not there refused by name."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.models.catalog import FAMILIES, MODELS, NOT_YET, family_of, find_model, model_names
from octavo.models.fields import ModelError
from octavo.models.layer_groups import layer_groups
from octavo.models.llama import LLAMA, spec_from_config, spec_from_gguf
from octavo.models.shapes import TENSORS_PER_LAYER, tensor_shapes
from octavo.models.spec import ModelSpec

LLAMA2_7B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
LLAMA32_1B: dict[str, Any] = {
    "attention_bias": False,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "vocab_size": 128256,
}
MISTRAL_V03: dict[str, Any] = {
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "vocab_size": 32768,
}
GGUF: dict[str, Any] = {
    "llama.block_count": 2,
    "llama.context_length": 2048,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": 300,
}


def test_llama_2() -> None:
    spec = spec_from_config(LLAMA2_7B)
    assert (spec.head_dim, spec.num_kv_heads, spec.max_model_len, spec.tied_output) == (128, 32, 4096, False)
    assert (spec.rope.dim, spec.rope.theta, spec.rope.divisors) == (128, 10000.0, None)


def test_llama_3_scaling() -> None:
    """The wave of dimension pair i goes round 8192 * f / 2 pi times: below 1 it is divided by 32, above 4 it stays."""
    spec = spec_from_config(LLAMA32_1B)
    assert (spec.head_dim, spec.max_model_len, spec.tied_output) == (64, 131072, True)
    divisors = spec.rope.divisors
    assert divisors is not None and len(divisors) == 32
    plain = [500000.0 ** (-2 * i / 64) for i in range(32)]
    turns = [8192 * frequency / (2 * math.pi) for frequency in plain]
    assert all(d == 1.0 for d, t in zip(divisors, turns, strict=True) if t > 4)
    assert all(d == 32.0 for d, t in zip(divisors, turns, strict=True) if t < 1)
    between = [(d, f, t) for d, f, t in zip(divisors, plain, turns, strict=True) if 1 < t < 4]
    assert between
    for divisor, frequency, t in between:
        smooth = (t - 1.0) / (4.0 - 1.0)
        assert frequency / divisor == pytest.approx((1 - smooth) * frequency / 32 + smooth * frequency, rel=1e-12)
    assert list(divisors) == sorted(divisors)


def test_mistral_without_a_window() -> None:
    spec = spec_from_config(MISTRAL_V03)
    assert (spec.architecture, spec.num_kv_heads, spec.rope.theta) == ("mistral", 8, 1e6)


def test_transformers_5_writes_rope_parameters() -> None:
    old = spec_from_config(LLAMA32_1B)
    new = {key: value for key, value in LLAMA32_1B.items() if key not in ("rope_scaling", "rope_theta")}
    new["rope_parameters"] = {**LLAMA32_1B["rope_scaling"], "rope_theta": 500000.0}
    assert spec_from_config(new) == old


def test_linear_scaling_stretches_positions() -> None:
    for settings in ({"type": "linear", "factor": 2}, {"rope_type": "linear", "factor": 2.0}):
        spec = spec_from_config({**LLAMA2_7B, "rope_scaling": settings})
        assert (spec.rope.divisors, spec.max_model_len) == ((2.0,) * 64, 8192)
    assert spec_from_config({**LLAMA2_7B, "rope_scaling": {"rope_type": "default"}}) == spec_from_config(LLAMA2_7B)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"sliding_window": 0}, "sliding_window is 0"),
    ({"sliding_window": "long"}, "sliding_window is 'long'"),
    ({"attention_bias": True}, "bias in attention"),
    ({"mlp_bias": True}, "bias in the feed-forward"),
    ({"hidden_act": "gelu"}, "activation 'gelu'"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope scaling of type 'dynamic'"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling of type 'yarn'"),
    ({"rope_scaling": {"rope_type": "longrope"}}, "rope scaling of type 'longrope'"),
    ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
    ({"rope_scaling": {**LLAMA32_1B["rope_scaling"], "high_freq_factor": 1.0}}, "high_freq_factor"),
    ({"rope_scaling": 3}, "rope_scaling is 3; it must be an object"),
    ({"partial_rotary_factor": 0.5}, "a part of each head"),
    ({"rope_interleaved": True}, "interleaved rotary"),
    ({"num_local_experts": 8}, "mixture of experts"),
    ({"layer_types": ["full_attention", "chunked_attention"]}, "'chunked_attention'"),
    ({"layer_types": ["full_attention"] * 31}, "31 entries for 32 layers"),
    ({"layer_types": "sliding_attention"}, "1 entries for 32 layers"),
    ({"layer_types": ["sliding_attention"] * 32}, "sliding_window is missing"),
    ({"quantization_config": {"quant_method": "awq"}}, "weights quantised by 'awq'"),
    ({"num_key_value_heads": 5}, "32 attention heads cannot share 5"),
    ({"head_dim": 127}, "even number"),
    ({"head_dim": 2048}, "head_dim is 2048"),
    ({"hidden_size": 0}, "hidden_size is 0"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
    ({"vocab_size": "32000"}, "vocab_size is '32000'"),
    ({"vocab_size": True}, "vocab_size is True"),
    ({"vocab_size": None}, "vocab_size is missing"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
    ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
    ({"rope_theta": 1e-300}, "rope_theta"),
    ({"rope_theta": float("inf")}, "rope_theta"),
    ({"tie_word_embeddings": 1}, "must be true or false"),
]


@pytest.mark.parametrize(("change", "feature"), REFUSED)
def test_what_the_decoder_lacks_is_refused_by_name(change: dict[str, Any], feature: str) -> None:
    with pytest.raises(ModelError, match=feature):
        spec_from_config({**LLAMA2_7B, **change})


def test_a_window_as_long_as_the_context_is_none() -> None:
    for window in (4096, 5000):
        assert spec_from_config({**LLAMA2_7B, "sliding_window": window}) == spec_from_config(LLAMA2_7B)


def test_mistral_has_its_window_in_all_layers_even_where_it_does_not_mention_it() -> None:
    silent = {key: value for key, value in MISTRAL_V03.items() if key != "sliding_window"}
    for config in (silent, {**MISTRAL_V03, "sliding_window": 4096}):
        spec = spec_from_config(config)
        assert spec.windows == (4096,) * 32
        assert layer_groups(spec).windows == (4096,)


def test_ministral_has_windows_where_its_layer_types_say_so() -> None:
    types = ["full_attention", *["sliding_attention"] * 3] * 8
    spec = spec_from_config({**MISTRAL_V03, "model_type": "ministral", "sliding_window": 512, "layer_types": types})
    assert spec.windows == (None, 512, 512, 512) * 8
    all_full = {**MISTRAL_V03, "sliding_window": 512, "layer_types": ["full_attention"] * 32}
    assert spec_from_config(all_full) == spec_from_config(MISTRAL_V03)


@pytest.mark.parametrize(
    ("metadata", "windows"),
    [
        ({"sliding_window": 512}, (512, 512)),
        ({"sliding_window": 512, "sliding_window_pattern": (False, True)}, (None, 512)),
        ({"sliding_window": 512, "sliding_window_pattern": 2}, (512, None)),
        ({"sliding_window": 512, "sliding_window_pattern": 0}, (512, 512)),
        ({"sliding_window": 512, "sliding_window_pattern": 1}, ()),
        ({"sliding_window": 2048}, ()),
        ({"sliding_window": 0}, ()),
        ({}, ()),
    ],
)
def test_gguf_windows(metadata: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    values = {f"llama.attention.{key}": value for key, value in metadata.items()}
    assert spec_from_gguf({**GGUF, **values}, has_output=True).windows == windows


def test_gguf_metadata() -> None:
    spec = spec_from_gguf(GGUF, has_output=False)
    assert (spec.head_dim, spec.num_kv_heads, spec.rope.theta, spec.tied_output) == (16, 4, 10000.0, True)
    assert not spec_from_gguf(GGUF, has_output=True).tied_output
    tokens = {key: value for key, value in GGUF.items() if key != "llama.vocab_size"}
    assert spec_from_gguf({**tokens, "tokenizer.ggml.tokens": ("a",) * 77}, has_output=False).vocab_size == 77


def test_gguf_linear_scaling_by_the_new_and_the_old_key() -> None:
    new = {**GGUF, "llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    for values in (new, {**GGUF, "llama.rope.scale_linear": 2.0}):
        assert spec_from_gguf(values, has_output=False).rope.divisors == (2.0,) * 8
    assert spec_from_gguf({**GGUF, "llama.rope.scaling.type": "none"}, has_output=False).rope.divisors is None


def test_gguf_may_repeat_a_size_for_each_layer() -> None:
    same = {**GGUF, "llama.attention.head_count_kv": (2, 2), "llama.feed_forward_length": (96, 96)}
    assert spec_from_gguf(same, has_output=False).num_kv_heads == 2


@pytest.mark.parametrize(
    ("change", "feature"),
    [
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.rope.scaling.type": "yarn"}, "rope scaling of type 'yarn'"),
        ({"llama.rope.dimension_count": 8}, "8 of 16 dimensions"),
        ({"llama.attention.sliding_window": -1}, "sliding_window is -1"),
        ({"llama.attention.sliding_window_pattern": (True,)}, "true or false for each of 2 layers"),
        ({"llama.attention.sliding_window_pattern": (1, 0)}, "true or false for each of 2 layers"),
        ({"llama.attention.value_length": 32}, "values of another length"),
        ({"llama.attention.causal": False}, "both directions"),
        ({"llama.attention.scale": 0.5}, "scaled activations"),
        ({"llama.attention.head_count_kv": (2, 4)}, "layers of different sizes"),
        ({"llama.attention.head_count_kv": ()}, "layers of different sizes"),
        ({"llama.attention.head_count_kv": ("a", "a")}, "must be a whole number"),
        ({"llama.vocab_size": None}, "vocab_size is missing"),
        ({"llama.context_length": 0}, "context_length is 0"),
    ],
)
def test_gguf_metadata_is_refused_by_name(change: dict[str, Any], feature: str) -> None:
    with pytest.raises(ModelError, match=feature):
        spec_from_gguf({**GGUF, **change}, has_output=False)


def test_every_tensor_has_one_name_in_each_format() -> None:
    spec = spec_from_config({**LLAMA2_7B, "num_hidden_layers": 3})
    names = tensor_shapes(spec)
    assert len(names) == 3 * TENSORS_PER_LAYER + 3
    for translate in (LLAMA.hf_name, LLAMA.gguf_name):
        assert len({translate(name) for name in names}) == len(names)
    assert LLAMA.hf_name("layers.2.o") == "model.layers.2.self_attn.o_proj.weight"
    assert LLAMA.gguf_name("layers.2.o") == "blk.2.attn_output.weight"
    assert LLAMA.hf_name("output") == "lm_head.weight"


def test_shapes_follow_the_heads() -> None:
    shapes = tensor_shapes(spec_from_config({**LLAMA32_1B, "num_hidden_layers": 1, "head_dim": 96}))
    assert shapes["layers.0.q"] == (32 * 96, 2048)
    assert shapes["layers.0.k"] == shapes["layers.0.v"] == (8 * 96, 2048)
    assert shapes["layers.0.o"] == (2048, 32 * 96)
    assert "output" not in shapes


SIZES = st.sampled_from((0, 1, 2, 3, 8, 64, 2**31, 2**63, -1, 10**400)) | st.floats() | st.none() | st.text(max_size=3)


@given(st.dictionaries(st.sampled_from(sorted(LLAMA32_1B)), SIZES, max_size=3))
def test_any_configuration_is_a_sound_spec_or_refused(changes: dict[str, Any]) -> None:
    try:
        spec = spec_from_config({**LLAMA32_1B, **changes})
    except ModelError:
        return
    assert_sound(spec)


def assert_sound(spec: ModelSpec) -> None:
    assert spec.num_heads % spec.num_kv_heads == 0
    frequencies = spec.rope.inverse_frequencies()
    assert len(frequencies) == spec.head_dim // 2
    assert all(0 < value <= 1e12 for value in frequencies)
    assert all(dim > 0 for shape in tensor_shapes(spec).values() for dim in shape)


def test_unknown_architectures_name_what_is_missing() -> None:
    for architecture, lacks in NOT_YET.items():
        assert architecture not in FAMILIES
        with pytest.raises(ModelError) as caught:
            family_of(architecture)
        assert lacks in str(caught.value)
    with pytest.raises(ModelError, match=r"'bert' is not supported \(supported: llama"):
        family_of("bert")


def test_every_name_of_the_catalogue_means_one_model() -> None:
    names = model_names()
    assert len(set(names)) == len(names)
    for model in MODELS:
        assert "==" in model.requirement, "the digest belongs to one version"
        assert len(bytes.fromhex(model.sha256)) == 32
        for name in (model.name, *model.aliases):
            assert find_model(name.upper()) is model
    assert find_model("no-such-model") is None
