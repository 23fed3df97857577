"""The contract of core.ports.Backend, on all who claim it. Every comparison is of bits, within one backend."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from octavo.core.plan import BlockCopy, StepPlan
from octavo.core.ports import Backend, BlockMemory, Capacity
from octavo.core.sampling import SamplingParams
from tests.contract.driver import WHOLE, Run, finish, step
from tests.contract.implementations import ALL, MAX_MODEL_LEN, POISON, WITH_WEIGHTS
from tests.core.words import mask_of
from tests.tiny import TINY_VOCAB_SIZE

BLOCK = 8
NUM_BLOCKS = 24

GREEDY = SamplingParams(temperature=0, logprobs=2)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, logprobs=0)
SCORED = SamplingParams(temperature=0, logprobs=1, prompt_logprobs=3)
PENALISED = SamplingParams(
    temperature=1.2, top_k=40, repetition_penalty=1.2, frequency_penalty=0.3, min_p=0.01, typical_p=0.95
)

Open = Callable[[], Backend]


@pytest.fixture(params=ALL)
def fresh(request: pytest.FixtureRequest) -> Open:
    """Opens a new backend with an empty cache. (The weights are shared by all that are opened.)"""
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


def four_runs() -> list[Run]:
    """Different lengths, parameters and blocks: a whole block, a block and one, short, long."""
    return [
        Run("whole", prompt(2 * BLOCK, 1), GREEDY, blocks(0)),
        Run("one more", prompt(2 * BLOCK + 1, 2), SAMPLED, blocks(6)),
        Run("short", prompt(1, 3), SCORED, blocks(12)),
        Run("long", prompt(35, 4), PENALISED, blocks(18)),
    ]


def alone(fresh: Open, run: Run, num_tokens: int) -> Run:
    """The same request on a backend of its own, in whole chunks."""
    opened = fresh()
    same = replace(run, computed=0, generated=[], scored=[], error=None)
    finish(opened, [same], num_tokens)
    opened.close()
    return same


# -- the object ------------------------------------------------------------------------------------------------------


def test_capacity_is_what_it_was_built_with_and_stays(backend: Backend):
    expected = Capacity(
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK,
        vocab_size=TINY_VOCAB_SIZE,
        max_model_len=MAX_MODEL_LEN,
        hidden_size=backend.capacity().hidden_size,
        busy_tokens=backend.capacity().busy_tokens,
    )
    assert isinstance(backend, Backend)
    assert backend.capacity() == expected
    finish(backend, four_runs(), 2)
    assert backend.capacity() == expected


def test_closing_twice_is_harmless(fresh: Open):
    opened = fresh()
    step(opened, four_runs())
    opened.close()
    opened.close()


def test_closing_one_leaves_another_running(fresh: Open):
    first, second = fresh(), fresh()
    first.close()
    finish(second, four_runs(), 2)
    second.close()


def test_a_plan_without_work_gives_no_results(backend: Backend):
    result = backend.execute(StepPlan(3))
    assert (result.step, result.results) == (3, ())


def test_the_middle_of_a_prompt_gives_nothing(backend: Backend):
    run = Run("a", prompt(20), GREEDY, blocks(0))
    step(backend, [run], 7)
    assert (run.generated, run.scored, run.computed) == ([], [], 7)


def test_results_carry_what_was_asked_for_and_no_more(backend: Backend):
    plain = Run("plain", prompt(5), SamplingParams(temperature=0), blocks(0))
    scored = Run("scored", prompt(5), SCORED, blocks(6))
    step(backend, [plain, scored])
    bare, told = plain.generated[0], scored.generated[0]
    assert (bare.logprob, bare.rank, bare.alternatives) == (None, None, ())
    assert bare.token == told.token
    assert told.rank == 1
    assert told.alternatives == ((told.token, told.logprob),)
    assert plain.scored == []
    for entry in scored.scored:
        assert entry.rank is not None and entry.logprob is not None and entry.logprob < 0
        order = [logprob for _, logprob in entry.alternatives]
        assert len(order) == 3 and order == sorted(order, reverse=True)


# -- the law: a result depends on its own request alone --------------------------------------------------------------


def test_a_batch_gives_what_each_request_gives_alone(fresh: Open, backend: Backend):
    for run in finish(backend, four_runs(), 6):
        assert run.outcome == alone(fresh, run, 6).outcome


@pytest.mark.parametrize("chunk", [1, 3, 7, BLOCK, 2 * BLOCK + 1])
def test_chunks_do_not_matter(fresh: Open, backend: Backend, chunk: int):
    for run in finish(backend, four_runs(), 3, chunk):
        assert run.outcome == alone(fresh, run, 3).outcome


def test_which_blocks_does_not_matter(fresh: Open, backend: Backend):
    scattered = np.random.default_rng(8).permutation(NUM_BLOCKS).tolist()
    for index, run in enumerate(four_runs()):
        moved = replace(run, block_ids=tuple(scattered[6 * index : 6 * index + 6]))
        finish(backend, [moved], 6)
        assert moved.outcome == alone(fresh, run, 6).outcome


def test_more_blocks_than_needed_do_not_matter(fresh: Open, backend: Backend):
    short = Run("a", prompt(5), SAMPLED, blocks(0, 2))
    long = replace(short, block_ids=blocks(0, NUM_BLOCKS), generated=[], scored=[])
    finish(backend, [long], 4)
    assert long.outcome == alone(fresh, short, 4).outcome


def test_stale_kv_in_reused_blocks_does_not_matter(fresh: Open, backend: Backend):
    finish(backend, four_runs(), 6)
    for run in four_runs():
        reused = replace(run, name="later " + run.name, prompt=run.prompt[::-1], block_ids=run.block_ids[::-1])
        finish(backend, [reused], 6)
        assert reused.outcome == alone(fresh, reused, 6).outcome


def test_recomputing_after_a_preemption_does_not_matter(fresh: Open, backend: Backend):
    """The generated tokens are computed again as if they were prompt, in other blocks."""
    run = Run("a", prompt(13), SAMPLED, blocks(0))
    finish(backend, [run], 4)
    run.computed, run.block_ids = 0, blocks(10)
    finish(backend, [run], 8, chunk=5)
    assert run.outcome == alone(fresh, replace(run, block_ids=blocks(0)), 8).outcome


@pytest.mark.parametrize("seed", range(4))
def test_any_interleaving_gives_what_each_gives_alone(fresh: Open, backend: Backend, seed: int):
    """Each step takes some of the requests, each with a chunk of its own: continuous batching at random."""
    rng = np.random.default_rng(seed)
    runs = four_runs()
    while open_runs := [run for run in runs if len(run.generated) < 5]:
        chosen = [run for run in open_runs if rng.random() < 0.6]
        rng.shuffle(chosen)
        step(backend, chosen, [int(rng.integers(1, 12)) for _ in chosen])
    for run in runs:
        assert run.outcome == alone(fresh, run, 5).outcome


def test_a_prefix_that_another_computed_is_as_good_as_ones_own(fresh: Open, backend: Backend):
    shared = prompt(3 * BLOCK, 1)
    first = Run("first", shared + prompt(4, 2), GREEDY, blocks(0))
    finish(backend, [first], 3)
    second = Run("second", shared + prompt(9, 3), SAMPLED, blocks(0, 3) + blocks(10, 3), computed=3 * BLOCK)
    both = finish(backend, [first, second], 6)
    for run in both:
        assert run.outcome == alone(fresh, replace(run, block_ids=blocks(0)), 6).outcome


# -- copies ----------------------------------------------------------------------------------------------------------


def test_a_copied_block_is_as_good_as_the_first(fresh: Open, backend: Backend):
    """The tail block of a fork is copied in the very step that writes into the copy; both go on."""
    parent = Run("parent", prompt(2 * BLOCK + 3), SAMPLED, (4, 9, 2, 11))
    step(backend, [parent])
    child = replace(parent, name="child", choice=1, generated=[], block_ids=(4, 9, 7, 12))
    child.computed = parent.computed - 1
    step(backend, [parent, child], WHOLE, [BlockCopy(2, 7)])
    for run in finish(backend, [parent, child], 12):
        assert run.outcome == alone(fresh, run, 12).outcome


def test_copies_happen_in_their_order_before_any_work(fresh: Open, backend: Backend):
    run = Run("a", prompt(2 * BLOCK), GREEDY, (0, 1, 5))
    step(backend, [run])
    run.block_ids = (3, 2, 5)
    step(backend, [run], WHOLE, [BlockCopy(0, 2), BlockCopy(2, 3), BlockCopy(1, 2)])
    assert run.outcome == alone(fresh, replace(run, block_ids=blocks(0)), 2).outcome


# -- blocks, out and in ------------------------------------------------------------------------------------------------


def test_blocks_that_were_elsewhere_are_as_good_as_before(backend: Backend, fresh: Open):
    """A run's blocks are read, overwritten by others, and written back elsewhere, in another order; then it goes on."""
    assert isinstance(backend, BlockMemory)
    run = Run("a", prompt(2 * BLOCK + 3), SAMPLED, (4, 9, 2, 11))
    finish(backend, [run], 3)
    kept = [backend.read_block(block) for block in run.block_ids]
    assert {len(raw) for raw in kept} == {backend.block_bytes}
    finish(backend, [Run("other", prompt(30, 2), GREEDY, run.block_ids)], 2)
    run.block_ids = (7, 4, 0, 9)
    for block, raw in reversed(list(zip(run.block_ids, kept, strict=True))):
        backend.write_block(block, raw)
        assert backend.read_block(block) == raw
    finish(backend, [run], 9)
    assert run.outcome == alone(fresh, replace(run, block_ids=blocks(0)), 9).outcome


def test_what_was_read_does_not_change_when_the_block_does(backend: Backend):
    assert isinstance(backend, BlockMemory)
    finish(backend, [Run("a", prompt(BLOCK), GREEDY, blocks(0))], 1)
    raw = backend.read_block(0)
    before = bytes(raw)
    finish(backend, [Run("b", prompt(BLOCK, 1), GREEDY, blocks(0))], 1)
    assert bytes(raw) == before != bytes(backend.read_block(0))


def test_bytes_of_one_backend_are_understood_by_another_of_its_kind(backend: Backend, fresh: Open):
    run = Run("a", prompt(2 * BLOCK), GREEDY, blocks(0))
    finish(backend, [run], 2)
    other = fresh()
    assert isinstance(backend, BlockMemory) and isinstance(other, BlockMemory)
    for block in run.block_ids:
        other.write_block(block, backend.read_block(block))
    finish(other, [run], 6)
    assert run.outcome == alone(fresh, run, 6).outcome
    other.close()


def test_no_block_outside_the_pool_and_no_part_of_a_block(backend: Backend):
    assert isinstance(backend, BlockMemory)
    whole = backend.read_block(0)
    for block in (-1, NUM_BLOCKS):
        with pytest.raises(ValueError, match=f"block {block} is"):
            backend.read_block(block)
        with pytest.raises(ValueError, match=f"block {block} is"):
            backend.write_block(block, whole)
    with pytest.raises(ValueError, match=str(backend.block_bytes)):
        backend.write_block(0, whole[:-1])


# -- samples and targets ---------------------------------------------------------------------------------------------


def test_n_samples_are_the_draws_of_n_choices(fresh: Open, backend: Backend):
    run = Run("a", prompt(11), SAMPLED, blocks(0))
    work = run.work()._replace(samples=tuple(run.sample()._replace(choice=choice) for choice in range(5)))
    sampled = backend.execute(StepPlan(1, (work,))).results[0].sampled
    assert len({token.token for token in sampled}) > 1
    for choice, token in enumerate(sampled):
        assert [token] == alone(fresh, replace(run, choice=choice), 1).generated


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, PENALISED])
def test_right_guesses_give_what_steps_of_their_own_give(fresh: Open, backend: Backend, params: SamplingParams):
    """Guess 3 of 4 is wrong: what was drawn up to there holds, and so does what is drawn after it."""
    expected = alone(fresh, Run("a", prompt(11), params, blocks(0)), 9)
    others = [Run("before", prompt(5, 1), SCORED, blocks(6)), Run("after", prompt(3, 2), GREEDY, blocks(12))]
    run = Run("a", prompt(11), params, blocks(0))
    step(backend, [run])
    right = expected.tokens[len(run.tokens) :][:2]
    draft = (*right, (expected.generated[3].token + 1) % POISON, right[0])
    ahead = [replace(run, generated=expected.generated[: 1 + count]) for count in range(3)]
    samples = tuple(each.sample() for each in ahead) + (ahead[0].sample(),) * 2
    work = run.work()._replace(tokens=(run.tokens[-1], *draft), samples=samples, num_drafted=4)
    plan = StepPlan(2, (others[0].work(), work, others[1].work()))
    result = backend.execute(plan).results
    assert result[1].sampled[:3] == tuple(expected.generated[1:4])
    for other, answer in zip(others, (result[0], result[2]), strict=True):
        other.take(other.work(), answer)
        assert other.outcome == alone(fresh, other, 1).outcome
    run.generated += result[1].sampled[:3]
    run.computed += 3
    finish(backend, [run], 9)
    assert run.outcome == expected.outcome


def test_samples_of_one_work_may_ask_for_different_things(backend: Backend):
    run = Run("a", prompt(11), SAMPLED, blocks(0))
    asked = (
        SamplingParams(temperature=0),
        SamplingParams(temperature=0, logprobs=4),
        SamplingParams(allowed_token_ids=[17]),
    )
    work = run.work()._replace(samples=tuple(run.sample()._replace(params=params) for params in asked))
    plain, told, forced = backend.execute(StepPlan(1, (work,))).results[0].sampled
    assert plain.token == told.token and plain.logprob is None
    assert len(told.alternatives) == 4
    assert forced.token == 17


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_only_what_the_mask_has_is_drawn(backend: Backend, temperature: float):
    """Bit by bit: each byte of the mask with one bit, several, and the odd end of the vocabulary."""
    run = Run("a", prompt(11), SamplingParams(temperature=temperature, logprobs=2), blocks(0))
    for allowed in ({0}, {7}, {8, 13}, {TINY_VOCAB_SIZE - 1}, {5, 6, 40, TINY_VOCAB_SIZE - 1}):
        mask = mask_of(allowed, TINY_VOCAB_SIZE)
        samples = tuple(run.sample()._replace(seed=seed, mask=mask) for seed in range(20))
        drawn = backend.execute(StepPlan(1, (run.work()._replace(samples=samples),))).results[0].sampled
        assert {token.token for token in drawn} <= allowed
        raw = backend.execute(StepPlan(1, (run.work(),))).results[0].sampled[0]
        assert all(token.alternatives == raw.alternatives for token in drawn), "logprobs are of the raw distribution"


def test_a_mask_is_of_its_own_sample_only(fresh: Open, backend: Backend):
    run = Run("a", prompt(11), SAMPLED, blocks(0))
    mask = mask_of({3, 9}, TINY_VOCAB_SIZE)
    work = run.work()._replace(samples=(run.sample(), run.sample()._replace(mask=mask), run.sample()))
    free, kept, free_again = backend.execute(StepPlan(1, (work,))).results[0].sampled
    assert kept.token in (3, 9)
    assert [free] == [free_again] == alone(fresh, run, 1).generated


def test_where_a_mask_leaves_nothing_its_work_fails_and_no_other(backend: Backend):
    run, other = Run("a", prompt(5), GREEDY, blocks(0)), Run("b", prompt(5), GREEDY, blocks(6))
    nothing = run.work()._replace(samples=(run.sample()._replace(mask=mask_of((), TINY_VOCAB_SIZE)),))
    failed, fine = backend.execute(StepPlan(1, (nothing, other.work()))).results
    assert (failed.sampled, failed.code) == ((), "nothing_allowed") and failed.error is not None
    assert fine.error is None and fine.code is None


def test_a_target_scores_as_the_same_token_when_sampled(backend: Backend):
    """Greedy tokens, fed back as a prompt, have the logprobs that they were sampled with."""
    run = Run("a", prompt(9), SamplingParams(temperature=0, logprobs=3), blocks(0))
    finish(backend, [run], 8)
    scoring = SamplingParams(temperature=0, logprobs=3, prompt_logprobs=3)
    again = Run("b", run.tokens[:-1], scoring, blocks(6))
    step(backend, [again], 5)
    step(backend, [again])
    assert [*again.scored[len(run.prompt) - 1 :], again.generated[0]] == run.generated


def test_targets_may_cover_every_token_of_a_work(backend: Backend):
    """A chunk in the middle of a prompt scores its last token's successor too."""
    run = Run("a", prompt(10), SCORED, blocks(0))
    step(backend, [run], 4)
    assert [entry.token for entry in run.scored] == list(run.prompt[1:5])
    assert run.generated == []


def test_banned_and_allowed_tokens_are_obeyed(backend: Backend):
    run = Run("a", prompt(6), SamplingParams(temperature=0), blocks(0))
    step(backend, [run])
    best = run.generated[0].token
    other = Run("b", run.prompt, SamplingParams(temperature=0), blocks(6), banned=(best,))
    only = Run("c", run.prompt, SamplingParams(temperature=1, allowed_token_ids=[3, best]), blocks(12), banned=(best,))
    step(backend, [other, only])
    assert other.generated[0].token != best
    assert only.generated[0].token == 3


# -- errors ----------------------------------------------------------------------------------------------------------


def test_a_sample_without_a_token_left_fails_its_work_only(fresh: Open, backend: Backend):
    runs = four_runs()
    hopeless = SamplingParams(allowed_token_ids=[3])
    runs[1].params, runs[1].banned = hopeless, (3,)
    finish(backend, runs, 4)
    assert runs[1].error is not None and "no token may be drawn" in runs[1].error
    for run in (runs[0], runs[2], runs[3]):
        assert run.error is None
        assert run.outcome == alone(fresh, run, 4).outcome


def test_one_hopeless_sample_among_others_fails_the_work(backend: Backend):
    run = Run("a", prompt(6), GREEDY, blocks(0))
    bad = run.sample()._replace(params=SamplingParams(allowed_token_ids=[3]), banned=(3,))
    work = run.work()._replace(samples=(run.sample(), bad))
    result = backend.execute(StepPlan(1, (work,))).results[0]
    assert result.error is not None
    assert (result.sampled, result.scored) == ((), ())


@pytest.fixture(params=WITH_WEIGHTS)
def fresh_poisoned(request: pytest.FixtureRequest) -> Open:
    """Backends on a model with one embedding that is not a number."""
    return lambda: WITH_WEIGHTS[request.param](NUM_BLOCKS, BLOCK, poisoned=True)


def poisoned_run(length: int) -> Run:
    return Run("poisoned", (*prompt(length), POISON, 5, 6), SCORED, blocks(6))


@pytest.mark.parametrize("chunk", [WHOLE, 4])
def test_logits_that_are_not_finite_fail_their_work_only(fresh_poisoned: Open, chunk: int):
    backend = fresh_poisoned()
    runs = four_runs()
    runs[1] = poisoned_run(10)
    finish(backend, runs, 3, chunk)
    assert runs[1].error is not None and "not finite" in runs[1].error
    for run in (runs[0], runs[2], runs[3]):
        assert run.error is None
        assert run.outcome == alone(fresh_poisoned, run, 3).outcome
    backend.close()


def test_blocks_with_bad_kv_can_be_used_again(fresh_poisoned: Open):
    """0 x NaN is NaN: KV beyond a request's own length must not be read, not even with a weight of 0."""
    backend = fresh_poisoned()
    poisoned = poisoned_run(1)
    finish(backend, [poisoned], 1)
    assert poisoned.error is not None
    for length in (1, 2, 3, BLOCK, BLOCK + 1):
        run = Run(f"after {length}", prompt(length, length), SCORED, blocks(6))
        finish(backend, [run], 3)
        assert run.error is None
        assert run.outcome == alone(fresh_poisoned, run, 3).outcome
    backend.close()
