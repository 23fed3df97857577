"""The JSON of --pooler-config: what it may say, in vLLM's names, and what is told to whoever says anything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config.pooler import Pooler, read_pooler
from octavo.config.schema import ConfigError, ModelConfig


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (None, Pooler()),
        ("{}", Pooler()),
        ('{"pooling_type": "MEAN"}', Pooler(pooling_type="MEAN")),
        ('{"seq_pooling_type": "LAST", "normalize": false}', Pooler(use_activation=False)),
        ('{"dimensions": 64, "use_activation": true}', Pooler(dimensions=64)),
        ('{"dimensions": null, "pooling_type": null, "use_activation": null}', Pooler()),
    ],
)
def test_it_is_read_as_meant(text: str | None, meant: Pooler) -> None:
    assert read_pooler(text) == meant
    assert ModelConfig(pooler_config=text).pooler_config == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("MEAN", "not JSON"),
        ("[]", "an object"),
        ('{"pooling": "MEAN"}', "'pooling' is not one of its keys: pooling_type"),
        ('{"pooling_type": "CLS"}', "pooling_type must be MEAN or LAST, got 'CLS'"),
        ('{"pooling_type": ["MEAN"]}', "pooling_type must be"),
        ('{"pooling_type": "MEAN", "seq_pooling_type": "MEAN"}', "under two names"),
        ('{"use_activation": 1}', "use_activation must be true or false, got 1"),
        ('{"dimensions": 0}', "dimensions must be a whole number from 1, got 0"),
        ('{"dimensions": true}', "dimensions must be"),
        ('{"dimensions": 2.5}', "dimensions must be"),
    ],
)
def test_anything_else_is_told_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_pooler(text)
    with pytest.raises(ConfigError, match=words):
        ModelConfig(pooler_config=text)


@given(st.text(max_size=40) | st.dictionaries(st.text(max_size=8), st.none() | st.booleans() | st.integers()).map(str))
def test_noise_is_a_value_error_or_nothing(text: str) -> None:
    try:
        read_pooler(text)
    except ValueError:
        return
