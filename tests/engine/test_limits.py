"""What policy works within, where the configuration leaves it to the machine and to other settings."""

from typing import Any

import pytest

from octavo import LLM
from octavo.boot import build_replica, open_model
from octavo.config.sources import from_keywords
from tests.tiny import make_tiny, write_gguf

SMALL: dict[str, Any] = {"num_blocks": 64, "crash_dump_dir": "off"}
BUSY = 64
"""What keeps the cpu backend busy."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_gguf(make_tiny(seed=3), tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


@pytest.mark.parametrize(
    ("options", "due"),
    [
        ({}, BUSY),
        ({"slo_ttft_ms": 50.0}, BUSY),
        ({"slo_itl_ms": 50.0}, 0),
        ({"slo_itl_ms": 50.0, "prefill_tokens_beside_decodes": 5}, 5),
        ({"prefill_tokens_beside_decodes": 0}, 0),
    ],
)
def test_what_prompts_may_take_beside_decodes(tiny: str, options: dict[str, Any], due: int) -> None:
    config = from_keywords(model=tiny, **SMALL, **options)
    replica = build_replica(config, open_model(config), lambda what: None)
    replica.backend.close()
    assert replica.scheduler.limits.prefill_tokens_beside_decodes == due


def test_offline_nobody_waits_for_a_next_token(tiny: str) -> None:
    for options, due in (({}, 0), ({"prefill_tokens_beside_decodes": 5}, 5)):
        with LLM(tiny, **SMALL, **options) as llm:
            assert llm._replica.scheduler.limits.prefill_tokens_beside_decodes == due
