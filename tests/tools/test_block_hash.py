"""The hash of block keys, from its name to the thing: boot hands it in, and says so where its package is missing."""

import sys

import pytest

from octavo import boot
from octavo.config.schema import ConfigError, settings
from octavo.config.sources import from_keywords

NAMES = settings()["prefix_caching_hash_algo"].option.choices


@pytest.mark.parametrize("name", NAMES)
def test_every_name_that_may_be_configured_is_a_hash(name: str) -> None:
    block_hash = boot.block_hash_of(from_keywords(prefix_caching_hash_algo=name))
    assert len(block_hash.digest(b"")) == (16 if name == "xxh3_128" else 32)


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(ConfigError, match=r"xxh3_128, which needs .* pip install 'octavo\[xxhash\]'; or .* sha256"):
        boot.block_hash_of(from_keywords(prefix_caching_hash_algo="xxh3_128"))
    assert boot.block_hash_of(from_keywords(prefix_caching_hash_algo="sha256"))
