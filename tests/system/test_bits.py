"""Bit-identity: whatever runs beside a request, and however it is cut, cached, preempted or spread over threads, its
tokens and their logprobs are the same floats."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from octavo.core.events import Admitted, Drafted, Event, Preempted
from octavo.core.plan import ScoredToken
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.engine.loop import Order, Replica
from tests.contract.implementations import ISAS
from tests.engine.script import Script, play
from tests.system.replicas import opened

SLOW_ISAS = {"scalar"} if len(ISAS) > 1 else set[str]()
"""An oracle in no hurry. Where it is not the only one, a commit waits for one test of it, and the others are slow."""


@dataclass(frozen=True)
class Size:
    """How much is computed: prompts longer than a block, answers that cross one, and company of many lengths."""

    length: int
    new: int
    company: int
    budgets: tuple[int, ...]
    other_length: int
    tight_blocks: int
    """Blocks for one other of `other_length` and the two that everything is about, as long as none of them grows."""


FAST = Size(length=75, new=10, company=15, budgets=(7, 16, 512), other_length=40, tight_blocks=3 + 5 + 5)
SLOW = Size(length=17, new=2, company=2, budgets=(7,), other_length=16, tight_blocks=1 + 2 + 2)
"""For the scalar kernels: as little as crosses a block."""


def size_for(isa: str) -> Size:
    return SLOW if isa == "scalar" else FAST


def prompt(number: int, length: int) -> tuple[int, ...]:
    return tuple((number * 7919 + position * 104729) % 40000 + 100 for position in range(length))


def asked(size: Size, name: str = "x") -> list[Request]:
    """The two requests that everything is about: greedy, and drawn with all that a draw depends on."""
    same: dict[str, Any] = {"max_tokens": size.new, "logprobs": 3, "ignore_eos": True}
    greedy = SamplingParams(temperature=0, **same)
    drawn = SamplingParams(temperature=0.9, top_p=0.95, repetition_penalty=1.1, **same)
    return [
        Request(request_id=f"{name} greedy", prompt=prompt(1, size.length), params=greedy),
        Request(request_id=f"{name} drawn", prompt=prompt(2, size.length), params=drawn, seed=12345),
    ]


def others(count: int, length: int = 0, new: int = 6) -> list[Request]:
    """Company of many lengths, or of one."""
    params = SamplingParams(temperature=0.7, max_tokens=new, ignore_eos=True)
    return [
        Request(request_id=f"other {i}", prompt=prompt(10 + i, length or 3 + 5 * i), params=params, seed=i)
        for i in range(count)
    ]


def replica(model: Path, isa: str, **options: Any) -> AbstractContextManager[Replica]:
    return opened(model, **{"isa": isa, "max_model_len": 256, "max_num_seqs": 17} | options)


Answers = list[list[ScoredToken]]


def answers(script: Script, size: Size) -> Answers:
    return [script.scored(request.request_id) for request in asked(size)]


def result(model: Path, isa: str, turns: Sequence[Sequence[Order]], **options: Any) -> tuple[Answers, list[Event]]:
    with replica(model, isa, **options) as built:
        script = play(built, *turns)
        return answers(script, size_for(isa)), script.events


def each_alone(model: Path, isa: str, **options: Any) -> Answers:
    """Each by itself, in one chunk, on one thread, into an empty cache."""
    size = size_for(isa)
    both: Answers = []
    with replica(model, isa, num_threads=1, **options) as built:
        for request in asked(size):
            both.append(play(built, [request]).scored(request.request_id))
            assert built.scheduler.reset_prefix_cache(0.0) is not None
    assert all(len(tokens) == size.new and tokens[0].logprob is not None for tokens in both)
    assert both[0] != both[1]
    return both


def marked(isa: str) -> Any:
    return pytest.param(isa, marks=pytest.mark.slow) if isa in SLOW_ISAS else isa


@pytest.fixture(scope="module", params=map(marked, ISAS))
def isa(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def size(isa: str) -> Size:
    return size_for(isa)


@pytest.fixture(scope="module")
def alone(default_model: Path, isa: str) -> Answers:
    return each_alone(default_model, isa)


def test_two_threads(default_model, isa, size, alone):
    got, _ = result(default_model, isa, [asked(size)], num_threads=2)
    assert got == alone


def test_among_others(default_model, isa, size, alone):
    company = others(size.company)
    half = len(company) // 2
    got, _ = result(default_model, isa, [[*company[:half], *asked(size)], company[half:]])
    assert got == alone


def test_in_chunks(default_model, isa, size, alone):
    for budget in size.budgets:
        options = {"max_num_batched_tokens": budget, "max_num_seqs": min(budget, 17)}
        got, _ = result(default_model, isa, [[*others(size.company // 5 + 1), *asked(size)]], **options)
        assert got == alone, f"with {budget} tokens a step"


def test_cached(default_model, isa, size, alone):
    """Hit up to the middle of a block, whose copy goes on with other tokens; then hit whole."""
    common = size.length - 2
    with replica(default_model, isa) as built:
        play(built, [replace(one, prompt=(*one.prompt[:common], *range(50, 70))) for one in asked(size, "before")])
        in_part, whole = play(built, asked(size)), play(built, asked(size))
    assert hits(in_part) == [common // 4 * 4] * 2 and common // 4 * 4 % 16
    assert min(hits(whole)) >= size.length // 16 * 16
    assert answers(in_part, size) == answers(whole, size) == alone


def hits(script: Script) -> list[int]:
    return [event.cached_tokens for event in script.events if isinstance(event, Admitted)]


def test_preempted(default_model, isa, size, alone):
    """All three fit at first; when the ones ahead grow, those behind lose their blocks."""
    company = others(1, length=size.other_length, new=2 * size.new)
    sizes = {"num_blocks": size.tight_blocks, "max_model_len": 16 * size.tight_blocks}
    options = {"block_manager": "v1", **sizes}  # v2 would let nobody in who may run short
    got, events = result(default_model, isa, [[*company, *asked(size)]], **options)
    hurt = {event.request_id for event in events if isinstance(event, Preempted)}
    assert hurt & {request.request_id for request in asked(size)}
    assert got == alone


def test_guessed_ahead(default_model, isa, alone):
    """Three tokens to choose from, so that endings recur and guesses are right and wrong, in blocks that they fill."""
    count = 4 if isa == "scalar" else 40
    few = (100, 1000, 10000)
    params = SamplingParams(temperature=0, max_tokens=count, logprobs=3, ignore_eos=True, allowed_token_ids=few)
    drawn = replace(params, temperature=0.3, presence_penalty=0.1)
    asked = [
        Request(request_id="greedy", prompt=prompt(1, 9), params=params),
        Request(request_id="drawn", prompt=prompt(2, 9), params=drawn, seed=5),
    ]
    guesses = {"num_speculative_tokens": 5, "prompt_lookup_min": 1}
    with replica(default_model, isa) as plain, replica(default_model, isa, speculative_config=guesses) as ahead:
        without, script = play(plain, asked), play(ahead, asked)
    assert all(script.scored(one.request_id) == without.scored(one.request_id) for one in asked)
    drafts = [event for event in script.events if isinstance(event, Drafted)]
    assert isa == "scalar" or sum(event.num_accepted for event in drafts) > 0


def test_another_block_size(default_model, isa, size, alone):
    got, _ = result(default_model, isa, [asked(size)], block_size=32)
    assert got == alone


def test_the_oracle_in_one_go(default_model):
    """The scalar kernels in chunks, on two threads, in company; then cached."""
    isa, size = "scalar", SLOW
    options = {"num_threads": 2, "max_num_batched_tokens": size.budgets[0], "max_num_seqs": size.budgets[0]}
    with replica(default_model, isa, **options) as built:
        first = play(built, [*others(1, new=size.new), *asked(size, "before")])
        second = play(built, asked(size))
    alone = each_alone(default_model, isa)
    assert [first.scored(request.request_id) for request in asked(size, "before")] == alone
    assert answers(second, size) == alone
    assert hits(second) == [16, 16]


FORMATS = [("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float16"), ("auto", "int8")]
OTHER_FORMATS = [("float32", "bfloat16"), ("float32", "float16"), ("bfloat16", "float32")]
SLOW_FORMATS = [pytest.param(*formats, marks=pytest.mark.slow) for formats in OTHER_FORMATS]


@pytest.mark.parametrize(("dtype", "kv_cache_dtype"), [*FORMATS, *SLOW_FORMATS])
def test_other_number_formats(default_model, dtype, kv_cache_dtype):
    isa = ISAS[0]
    options = {"dtype": dtype, "kv_cache_dtype": kv_cache_dtype}
    turns = [[*others(5), *asked(size_for(isa))]]
    got, _ = result(default_model, isa, turns, max_num_batched_tokens=17, num_threads=2, **options)
    assert got == each_alone(default_model, isa, **options)


def test_an_int8_cache_swapped_copied_and_hit(default_model):
    """Blocks carry their scales along: out to main memory and back, into a copy, and over to the next request."""
    isa, size = ISAS[0], size_for(ISAS[0])
    alone = each_alone(default_model, isa, kv_cache_dtype="int8")
    company = others(1, length=size.other_length, new=2 * size.new)
    sizes = {"num_blocks": size.tight_blocks, "max_model_len": 16 * size.tight_blocks, "block_manager": "v1"}
    options = {"kv_cache_dtype": "int8", "kv_offload_bytes": 64 << 20}
    got, events = result(default_model, isa, [[*company, *asked(size)]], **sizes, **options)
    assert got == alone and any(isinstance(event, Preempted) and event.tokens_swapped for event in events)
    with replica(default_model, isa, **options) as built:
        common = size.length - 2
        play(built, [replace(one, prompt=(*one.prompt[:common], *range(50, 70))) for one in asked(size, "before")])
        in_part = play(built, asked(size))
    assert answers(in_part, size) == alone and min(hits(in_part)) >= common // 16 * 16
