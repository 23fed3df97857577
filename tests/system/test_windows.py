"""A model with sliding windows, whole: the same bits alone, in company, in chunks, cached and preempted; few blocks."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.core.audit import audit
from octavo.core.events import Admitted, Drafted, Preempted
from octavo.core.plan import ScoredToken
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.engine.loop import Replica
from octavo.models.windows import Windows
from tests.contract.implementations import ISAS
from tests.engine.script import Script, play
from tests.system.replicas import opened
from tests.tiny import make_tiny, write_directory

BLOCK, WINDOW = 8, 20
MIXED: Windows = (None, WINDOW, WINDOW, WINDOW)
"""One group with full attention and three with a window, of one layer each."""
WINDOW_BLOCKS = 3 + 1
"""ceil((WINDOW - 1) / BLOCK) + 1: what a choice holds of a group with a window while it decodes."""


def model(windows: Windows, folder: Path) -> Path:
    return write_directory(make_tiny(num_layers=len(windows), windows=windows, seed=3), folder / f"w{len(windows)}")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model(MIXED, tmp_path_factory.mktemp("models"))


@contextmanager
def replica(model: Path, **options: Any) -> Iterator[Replica]:
    with opened(model, **{"block_size": BLOCK, "max_num_seqs": 8} | options) as built:
        yield built
        assert audit(built.scheduler) == ()
        assert built.scheduler.load().blocks_leased == 0


def text(seed: int, length: int) -> tuple[int, ...]:
    return tuple(int(token) for token in np.random.default_rng(seed).integers(3, 259, length))


def request(name: str, prompt: tuple[int, ...], new: int = 12, **params: Any) -> Request:
    sampling = SamplingParams(**{"max_tokens": new, "ignore_eos": True, "logprobs": 2, "temperature": 0.8, **params})
    return Request(request_id=name, prompt=prompt, params=sampling, seed=len(prompt))


def family(count: int) -> list[Request]:
    """Prompts of many lengths, some beginning alike, within and beyond the window; some answers cross it."""
    shared = text(1, 3 * WINDOW)
    return [
        request(
            f"r{i}", shared[: 11 * (i % 4)] + text(10 + i, 1 + 9 * (i % 8)), new=4 + 5 * (i % 7), n=1 + (i % 5 == 4)
        )
        for i in range(count)
    ]


def answers(script: Script, requests: list[Request]) -> list[list[ScoredToken]]:
    return [script.scored(one.request_id, choice) for one in requests for choice in range(one.params.n)]


def each_alone(model: Path, requests: list[Request], **options: Any) -> list[list[ScoredToken]]:
    """Each in one chunk, on one thread, into an empty cache."""
    with replica(model, num_threads=1, **options) as built:
        found: list[list[ScoredToken]] = []
        for one in requests:
            found += answers(play(built, [one]), [one])
            assert built.scheduler.reset_prefix_cache(0.0) is not None
    return found


@pytest.mark.parametrize("isa", ISAS)
def test_any_company_any_cut_and_any_shortage_give_the_same_bits(mixed: Path, isa: str) -> None:
    """A pool that is always short, tiny chunks, prompts that share beginnings: hits, evictions and preemptions."""
    requests = family(24)
    alone = each_alone(mixed, requests, isa=isa)
    sizes = {"num_blocks": 70, "max_model_len": 160, "max_num_batched_tokens": 24}
    options = {"isa": isa, "num_threads": 2, "block_manager": "v1", **sizes}
    with replica(mixed, **options) as built:
        script = play(built, requests[:10], requests[10:], [])
        assert answers(script, requests) == alone
        assert any(isinstance(event, Preempted) for event in script.events)
        assert any(event.cached_tokens for event in script.events if isinstance(event, Admitted))


def test_guesses_behind_a_window_give_the_same_bits(mixed: Path) -> None:
    """Answers that repeat themselves, so that guesses come true, some of them across the end of a window."""
    few = {"temperature": 0, "allowed_token_ids": (40, 80, 120)}
    requests = [request(f"r{i}", text(i, 20 + i), new=60, **few) for i in range(4)]
    guesses = {"num_speculative_tokens": 5, "prompt_lookup_min": 1}
    with replica(mixed, speculative_config=guesses) as built:
        script = play(built, requests)
        assert answers(script, requests) == each_alone(mixed, requests)
        assert any(isinstance(event, Drafted) and event.num_accepted for event in script.events)


def test_a_chunk_may_be_longer_than_the_window(mixed: Path) -> None:
    requests = [request("long", text(7, 150))]
    alone = each_alone(mixed, requests)
    for budget in (8, 21, 64, 512):
        with replica(mixed, max_num_batched_tokens=budget) as built:
            assert answers(play(built, requests), requests) == alone


def test_what_a_long_answer_holds_stays_bounded(tmp_path: Path) -> None:
    """With windows in all layers, hundreds of tokens take no more blocks than the first few dozen."""
    with replica(model((WINDOW,) * 2, tmp_path)) as built:
        script = play(built, [request("long", text(1, 5), new=240)])
        assert len(script.tokens("long")) == 240
        assert max(step.blocks_leased for step in script.stepped()) == WINDOW_BLOCKS


def test_only_full_attention_grows(mixed: Path) -> None:
    with replica(mixed) as built:
        script = play(built, [request("long", text(1, 5), new=240)])
        for num_tokens, step in enumerate(script.stepped()[:-1], 5):
            assert step.blocks_leased <= -(-num_tokens // BLOCK) + 3 * WINDOW_BLOCKS


def test_the_next_turn_hits_what_the_window_has_left_behind(mixed: Path) -> None:
    """The end of an answer is hit with the last window, its beginning with what was given back and is still cached."""
    prompt = text(5, 60)
    with replica(mixed) as built:
        first = play(built, [request("first", prompt, new=50)])
        whole = prompt + tuple(first.tokens("first"))
        turns = [request("next", whole + text(6, 5)), request("fork", prompt[:40] + text(8, 20))]
        script = play(built, turns[:1], turns[1:])
        hits = {event.request_id: event.cached_tokens for event in script.events if isinstance(event, Admitted)}
        assert hits == {"next": (len(whole) - 1) // BLOCK * BLOCK, "fork": 40}
    assert answers(script, turns) == each_alone(mixed, turns)


def test_a_pool_that_holds_one_request_serves_it_and_says_what_more_would_need(mixed: Path) -> None:
    with replica(mixed, num_blocks=40, max_num_batched_tokens=16) as built:
        limits = built.scheduler.limits
        assert limits.windows == (None, WINDOW, WINDOW, WINDOW)
        most = limits.max_model_len
        assert most == (40 - 3 * (3 + 2 + 1)) * BLOCK
        script = play(built, [request("most", text(1, most - 30), new=None)])
        assert len(script.tokens("most")) == 30
        assert "KV groups: 1 with full attention, 3 with a window of 20 tokens; of 1 layer each" in built.facts.report
