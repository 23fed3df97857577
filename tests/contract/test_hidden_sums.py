"""The part of the contract that embeddings rest on: sums of hidden states, on all backends, bit for bit."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from octavo.backends.cpu import CpuBackend, CpuModel
from octavo.backends.reference import ReferenceBackend
from octavo.core.plan import StepPlan
from octavo.core.ports import Backend
from octavo.core.sampling import SamplingParams
from octavo.loaders.dequant import dequantize
from tests.contract.driver import WHOLE, Run, finish, step
from tests.contract.implementations import ALL, ISAS, MAX_MODEL_LEN, POISON, WITH_WEIGHTS, tiny_checkpoint

BLOCK = 8
NUM_BLOCKS = 64
GREEDY = SamplingParams(temperature=0, logprobs=2)
SCORED = SamplingParams(temperature=0, prompt_logprobs=1)

Open = Callable[[], Backend]


@pytest.fixture(params=ALL)
def fresh(request: pytest.FixtureRequest) -> Open:
    return lambda: ALL[request.param](NUM_BLOCKS, BLOCK)


@pytest.fixture
def backend(fresh: Open):
    opened = fresh()
    yield opened
    opened.close()


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(int(token) for token in np.random.default_rng(seed).integers(0, POISON, length))


def blocks(first: int, count: int = 6) -> tuple[int, ...]:
    return tuple(range(first, first + count))


def mean(name: str, ids: tuple[int, ...], block_ids: tuple[int, ...]) -> Run:
    """Every hidden state is added."""
    return Run(name, ids, GREEDY, block_ids, adds_from=0)


def last(name: str, ids: tuple[int, ...], block_ids: tuple[int, ...]) -> Run:
    return Run(name, ids, GREEDY, block_ids, adds_from=len(ids) - 1)


def mixed() -> list[Run]:
    """Embeddings among others: before, between and behind them; a block and one, one token, from the middle on."""
    return [
        mean("all", prompt(2 * BLOCK + 1, 1), blocks(0)),
        Run("drawn", prompt(2 * BLOCK, 2), GREEDY, blocks(6)),
        last("last", prompt(35, 3), blocks(12)),
        mean("one", prompt(1, 4), blocks(18)),
        Run("scored", prompt(9, 5), SCORED, blocks(24)),
        Run("middle", prompt(30, 6), GREEDY, blocks(30), adds_from=13),
    ]


def alone(fresh: Open, run: Run, num_tokens: int = 3) -> Run:
    opened = fresh()
    same = replace(run, computed=0, generated=[], scored=[], total=b"", error=None)
    finish(opened, [same], num_tokens)
    opened.close()
    return same


def vector(total: bytes) -> np.ndarray:
    return np.frombuffer(total, np.float64)


def test_a_sum_has_as_many_numbers_as_a_hidden_state(backend: Backend):
    (run,) = finish(backend, [mean("a", prompt(5), blocks(0))], 0)
    assert len(run.total) == 8 * backend.capacity().hidden_size


def test_a_sum_is_of_the_hidden_states_one_after_the_other(fresh: Open, backend: Backend):
    """Each hidden state is had by itself, as the last of a shorter prompt."""
    ids = prompt(2 * BLOCK + 5)
    (run,) = finish(backend, [mean("all", ids, blocks(0))], 0)
    due = np.zeros(backend.capacity().hidden_size)
    for count in range(1, len(ids) + 1):
        due += vector(alone(fresh, last("one", ids[:count], blocks(0))).total)
    assert due.tobytes() == run.total


def test_no_two_positions_have_the_same_hidden_state(fresh: Open):
    totals = {alone(fresh, last("one", prompt(count), blocks(0))).total for count in range(1, 9)}
    assert len(totals) == 8


def test_a_batch_gives_what_each_gives_alone(fresh: Open, backend: Backend):
    for run in finish(backend, mixed(), 3):
        assert run.outcome == alone(fresh, run).outcome


@pytest.mark.parametrize("chunk", [1, 3, 7, BLOCK, 2 * BLOCK + 1])
def test_chunks_do_not_matter(fresh: Open, backend: Backend, chunk: int):
    for run in finish(backend, mixed(), 3, chunk):
        assert run.outcome == alone(fresh, run).outcome


@pytest.mark.parametrize("seed", range(3))
def test_any_interleaving_gives_what_each_gives_alone(fresh: Open, backend: Backend, seed: int):
    rng = np.random.default_rng(seed)
    runs = mixed()
    while open_runs := [run for run in runs if run.open(3)]:
        chosen = [run for run in open_runs if rng.random() < 0.6]
        rng.shuffle(chosen)
        step(backend, chosen, [int(rng.integers(1, 12)) for _ in chosen])
    for run in runs:
        assert run.outcome == alone(fresh, run).outcome


def test_long_steps_give_what_each_gives_alone(fresh: Open, backend: Backend):
    """Three hundred rows and more: a backend may cut them as it likes, also in the middle of a sum."""
    runs = [mean("first", prompt(150, 1), blocks(0, 20)), mean("second", prompt(155, 2), blocks(20, 20))]
    step(backend, [*runs, last("third", prompt(9, 3), blocks(40))])
    for run in runs:
        assert run.outcome == alone(fresh, run).outcome


def test_a_sum_goes_on_elsewhere(fresh: Open, backend: Backend):
    """After a preemption: in other blocks, which are computed again, and on another backend; nothing is added twice."""
    run = mean("a", prompt(29), blocks(0))
    step(backend, [run], 13)
    run.computed, run.block_ids, run.adds_from = 0, blocks(10), 13
    other = fresh()
    finish(other, [run], 0, chunk=5)
    other.close()
    assert run.outcome == alone(fresh, replace(run, adds_from=0, block_ids=blocks(0))).outcome


def test_the_last_hidden_state_is_the_same_over_a_prefix_that_another_computed(fresh: Open, backend: Backend):
    shared = prompt(3 * BLOCK, 1)
    finish(backend, [Run("first", shared, GREEDY, blocks(0))], 1)
    run = last("second", shared + prompt(9, 3), blocks(0, 3) + blocks(10, 3))
    run.computed = len(shared)
    finish(backend, [run], 0)
    assert run.outcome == alone(fresh, replace(run, block_ids=blocks(0))).outcome


def test_the_kv_that_it_leaves_behind_is_anybody_s(fresh: Open, backend: Backend):
    shared = prompt(2 * BLOCK, 1)
    finish(backend, [mean("first", shared, blocks(0))], 0)
    run = Run("second", shared + prompt(3, 3), GREEDY, blocks(0, 2) + blocks(10, 3), computed=len(shared))
    finish(backend, [run], 4)
    assert run.outcome == alone(fresh, replace(run, block_ids=blocks(0)), 4).outcome


@pytest.mark.parametrize("name", WITH_WEIGHTS)
@pytest.mark.parametrize("chunk", [WHOLE, 4])
def test_hidden_states_that_are_not_finite_fail_their_work_only(name: str, chunk: int):
    def fresh_poisoned() -> Backend:
        return WITH_WEIGHTS[name](NUM_BLOCKS, BLOCK, poisoned=True)

    backend = fresh_poisoned()
    runs = mixed()
    runs[0] = mean("poisoned", (*prompt(10), POISON, 5, 6), blocks(0))
    finish(backend, runs, 3, chunk)
    assert runs[0].error is not None and "not finite" in runs[0].error
    for run in runs[1:]:
        assert run.error is None
        assert run.outcome == alone(fresh_poisoned, run).outcome
    backend.close()


def test_an_error_has_a_word_for_programs():
    backend = WITH_WEIGHTS["reference"](NUM_BLOCKS, BLOCK, poisoned=True)
    work = mean("poisoned", (POISON,), blocks(0)).work()
    assert backend.execute(StepPlan(1, (work,))).results[0].code == "not_finite"
    backend.close()


HIDDEN_ERROR = 2e-5
"""Float32 throughout, two layers of width 64, numbers of size 1: as the bound on logprobs in test_agreement.py."""


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("weights", ["F32", "Q4_1", "Q8_0"])
def test_float32_hidden_states_are_the_reference_s(isa: str, weights: str):
    checkpoint = tiny_checkpoint(weights, weights)
    sizes = {"num_blocks": 16, "block_size": 16, "max_model_len": MAX_MODEL_LEN}
    model = CpuModel.load(checkpoint, dtype="float32", isa=isa, num_threads=1)
    native = CpuBackend(model, kv_cache_dtype="float32", **sizes)
    reference = ReferenceBackend(checkpoint, dequantize=dequantize, **sizes)
    for make in (mean, last):
        ours, theirs = (make("a", prompt(90), blocks(0)) for _ in range(2))
        finish(native, [ours], 0, 40)
        finish(reference, [theirs], 0)
        count = 90 if make is mean else 1
        assert vector(ours.total) / count == pytest.approx(vector(theirs.total) / count, abs=HIDDEN_ERROR)
    native.close()
    reference.close()
