"""The tree: defaults are allowed, each section checks itself, and it survives the way to the engine process."""

import dataclasses
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config import (
    CacheConfig,
    Config,
    ConfigError,
    Fault,
    SchedulerConfig,
    ServerConfig,
    docs,
    parse_fault,
    wire,
)
from octavo.config.schema import check_value, describe, settings
from octavo.config.sources import build, from_keywords
from octavo.core.eviction import EVICTIONS
from octavo.core.hashing import HASHES
from octavo.core.policies import RANKS
from octavo.core.sampling import MAX_STOPS
from octavo.core.structured import MAX_STRUCTURE_CHARS, MAX_STRUCTURE_DEPTH
from octavo.core.types import Limits
from tests.config.generate import some_settings, values

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "configuration.md"


def test_names_are_unique_over_all_sections() -> None:
    counts = [field.name for section in get_type_hints(Config).values() for field in dataclasses.fields(section)]
    assert sorted(counts) == sorted(settings())


def test_what_policy_is_given_has_the_same_defaults_as_policy() -> None:
    """But for the limits of the queue: those are a server's, and who calls the engine offline waits anyway.

    And for what is no value until the machine and other settings are known.
    """
    known = {name: setting for name, setting in settings().items() if setting.default is not None}
    ours = {name: setting.default for name, setting in known.items() if setting.section != "queue"}
    theirs = {field.name: field.default for field in dataclasses.fields(Limits)}
    shared = [name for name in theirs if name in ours and theirs[name] is not dataclasses.MISSING]
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}
    assert {"max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching"} <= set(shared)


def test_limits_of_schemas_go_as_far_as_the_core_does() -> None:
    for name, most in (("max_schema_length", MAX_STRUCTURE_CHARS), ("max_schema_depth", MAX_STRUCTURE_DEPTH)):
        assert settings()[name].default == settings()[name].option.at_most == most
    assert settings()["max_stop_strings"].option.at_most == MAX_STOPS


def test_choices_are_what_the_core_offers() -> None:
    assert settings()["prefix_caching_hash_algo"].option.choices == (*HASHES, "xxh3_128")
    assert settings()["scheduling_policy"].option.choices == tuple(RANKS)
    assert settings()["eviction_policy"].option.choices == tuple(EVICTIONS)


@given(st.sampled_from(sorted(settings())).flatmap(lambda name: st.tuples(st.just(name), values(settings()[name]))))
def test_allowed_values_are_accepted(pair: tuple[str, Any]) -> None:
    name, value = pair
    assert check_value(settings()[name], value) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", -1),
        ("port", 65536),
        ("port", "8000"),
        ("port", True),
        ("block_size", 12),
        ("gpu_memory_utilization", 0),
        ("gpu_memory_utilization", 1.01),
        ("gpu_memory_utilization", float("nan")),
        ("enable_prefix_caching", 1),
        ("dtype", "float16"),
        ("served_model_name", ("a", 1)),
        ("served_model_name", "a"),
        ("served_model_name", ("",)),
        ("root_path", "v1"),
        ("allowed_origins", ("example.org",)),
        ("fault", "decode-error"),
        ("host", None),
        ("seed", -1),
        ("seed", 2**64),
    ],
)
def test_other_values_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        build({name: value})


def test_a_refusal_says_value_and_limit() -> None:
    with pytest.raises(ConfigError) as caught:
        ServerConfig(port=70000)
    assert str(caught.value) == "port must be a whole number from 0 up to 65535, got 70000"


def test_two_sizes_of_the_cache_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="give one of them"):
        CacheConfig(num_blocks=4, kv_cache_memory_bytes=4096)


def test_a_step_may_have_fewer_tokens_than_slots() -> None:
    """Where choices are more than tokens, the first in the order go first."""
    assert SchedulerConfig(max_num_batched_tokens=1).max_num_seqs > 1


@given(some_settings())
def test_the_tree_survives_the_wire(chosen: dict[str, Any]) -> None:
    config = build(chosen)
    assert wire.decode(wire.encode(config)) == config


@given(st.binary(max_size=40) | st.sampled_from([b'{"server":{"port":-1}}', b'{"server":{"port":"x"}}']))
def test_noise_on_the_wire_is_a_clear_error(data: bytes) -> None:
    try:
        config = wire.decode(data)
    except ConfigError:
        return
    assert isinstance(config, Config)


def test_a_secret_is_not_shown_when_it_is_wrong() -> None:
    with pytest.raises(ConfigError) as caught:
        ServerConfig(api_key=("hunter2 ",))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("prefill-error", Fault("prefill-error")),
        ("decode-error@5", Fault("decode-error", 5)),
        ("engine-death@12", Fault("engine-death", 12)),
        ("engine-freeze@1", Fault("engine-freeze", 1)),
        ("slow-load=6", Fault("slow-load", 6)),
        ("slow-load@6", None),
        ("prefill-error@1", None),
        ("decode-error@", None),
        ("decode-error@x", None),
        ("", None),
    ],
)
def test_faults_are_read(text: str, fault: Fault | None) -> None:
    assert parse_fault(text) == fault


def test_every_optional_setting_says_what_none_does() -> None:
    assert [item.name for item in settings().values() if item.optional and not item.option.none_means] == []


def test_words_for_what_is_allowed() -> None:
    assert describe(settings()["block_size"]) == "8, 16, 32, 64 or 128"
    assert describe(settings()["gpu_memory_utilization"]) == "a number above 0 up to 1"
    assert describe(settings()["max_model_len"]) == "a whole number from 1 (or auto)"


def test_the_reference_page_is_what_the_schema_generates() -> None:
    assert REFERENCE.read_text(encoding="utf-8") == docs.reference(), "run: python -m octavo.config.docs > (the page)"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ngram", "not JSON"),
        ("3", "must be an object"),
        ('{"method": "eagle", "num_speculative_tokens": 3}', 'can only be "ngram"'),
        ('{"method": "ngram"}', "num_speculative_tokens must be there"),
        ('{"num_speculative_tokens": 65}', "from 1 to 64"),
        ('{"num_speculative_tokens": "3"}', "whole numbers"),
        ('{"num_speculative_tokens": true}', "whole numbers"),
        ('{"num_speculative_tokens": 3, "prompt_lookup_min": 5}', "must hold"),
        ('{"num_speculative_tokens": 3, "model": "draft"}', "'model' is not one of its keys"),
    ],
)
def test_how_to_guess_ahead_is_checked(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        SchedulerConfig(speculative_config=text)


def test_how_to_guess_ahead_may_be_a_mapping_where_it_is_no_flag() -> None:
    config = from_keywords(speculative_config={"method": "ngram", "num_speculative_tokens": 3})
    assert config.scheduler.speculative_config == '{"method": "ngram", "num_speculative_tokens": 3}'


def test_a_tier_on_disk_needs_a_size_and_keys_that_do_not_collide():
    with pytest.raises(ConfigError, match="kv_offload_bytes"):
        CacheConfig(kv_offload_path="/somewhere")
    with pytest.raises(ConfigError, match="sha256"):
        CacheConfig(kv_offload_path="/somewhere", kv_offload_bytes=1, prefix_caching_hash_algo="xxh3_128")
    CacheConfig(kv_offload_bytes=1, prefix_caching_hash_algo="xxh3_128")
