"""Bit-identity: whatever runs beside a request, and however it is cut, cached, preempted or spread over threads, its
tokens and their logprobs are the same floats."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from octavo import boot
from octavo.backends.cpu.isa import candidates
from octavo.config.sources import from_keywords
from octavo.core.events import Admitted, Event, Preempted
from octavo.core.plan import ScoredToken
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.engine.loop import Order, Replica
from octavo.loaders import open_checkpoint
from tests.engine.script import Script, play

LENGTH, NEW = 75, 10
GREEDY = SamplingParams(temperature=0, max_tokens=NEW, logprobs=3, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.9, top_p=0.95, max_tokens=NEW, logprobs=3, ignore_eos=True, repetition_penalty=1.1)
ISAS = [candidate.name for candidate in candidates() if candidate.accepted]


def prompt(number: int, length: int = LENGTH) -> tuple[int, ...]:
    return tuple((number * 7919 + position * 104729) % 40000 + 100 for position in range(length))


def asked(name: str = "x") -> list[Request]:
    """The two requests that everything is about: greedy, and drawn with all that a draw depends on."""
    return [
        Request(request_id=f"{name} greedy", prompt=prompt(1), params=GREEDY),
        Request(request_id=f"{name} drawn", prompt=prompt(2), params=DRAWN, seed=12345),
    ]


def others(count: int, length: int = 0, new: int = 6) -> list[Request]:
    """Company of many lengths, or of one."""
    params = SamplingParams(temperature=0.7, max_tokens=new, ignore_eos=True)
    return [
        Request(request_id=f"other {i}", prompt=prompt(10 + i, length or 3 + 5 * i), params=params, seed=i)
        for i in range(count)
    ]


@contextmanager
def replica(model: Path, isa: str, **options: Any) -> Iterator[Replica]:
    config = from_keywords(**{"model": str(model), "isa": isa, "max_model_len": 256, "max_num_seqs": 17} | options)
    built = boot.build_replica(config, open_checkpoint(model), lambda _: None)
    try:
        yield built
    finally:
        built.backend.close()


def answers(script: Script, name: str = "x") -> list[list[ScoredToken]]:
    return [script.scored(request.request_id) for request in asked(name)]


def result(model: Path, isa: str, turns: Sequence[Sequence[Order]], **options: Any) -> tuple[list[Any], list[Event]]:
    with replica(model, isa, **options) as built:
        script = play(built, *turns)
        return answers(script), script.events


@pytest.fixture(scope="module", params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def alone(default_model: Path, isa: str) -> list[list[ScoredToken]]:
    """Each by itself, in one chunk, on one thread, into an empty cache."""
    runs = [result(default_model, isa, [[request]], num_threads=1)[0] for request in asked()]
    both = [runs[0][0], runs[1][1]]
    assert all(len(tokens) == NEW and tokens[0].logprob is not None for tokens in both)
    assert both[0] != both[1]
    return both


def test_two_threads(default_model, isa, alone):
    got, _ = result(default_model, isa, [asked()], num_threads=2)
    assert got == alone


def test_among_fifteen_others(default_model, isa, alone):
    company = others(15)
    got, _ = result(default_model, isa, [[*company[:7], *asked()], company[7:]])
    assert got == alone


@pytest.mark.parametrize("budget", [7, 16, 512])
def test_in_chunks(default_model, isa, alone, budget):
    options = {"max_num_batched_tokens": budget, "max_num_seqs": min(budget, 17)}
    got, _ = result(default_model, isa, [[*others(3), *asked()]], **options)
    assert got == alone


def test_cached(default_model, isa, alone):
    with replica(default_model, isa) as built:
        play(built, asked("before"))
        script = play(built, asked())
    hits = {event.request_id: event.cached_tokens for event in script.events if isinstance(event, Admitted)}
    assert min(hits.values()) >= LENGTH // 16 * 16
    assert answers(script) == alone


def test_preempted(default_model, isa, alone):
    company = others(3, length=40, new=60)
    got, events = result(default_model, isa, [[*company, *asked()]], num_blocks=20)
    hurt = {event.request_id for event in events if isinstance(event, Preempted)}
    assert hurt & {request.request_id for request in asked()}
    assert got == alone


def test_another_block_size(default_model, isa, alone):
    got, _ = result(default_model, isa, [asked()], block_size=32)
    assert got == alone
