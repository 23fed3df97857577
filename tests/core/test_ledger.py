"""The oracle catches what it is there to catch, and its answers depend on a request alone."""

import pytest

from octavo.backends.ledger import LedgerBackend, LedgerError
from octavo.core.plan import BlockCopy, Sample, StepPlan, Work
from octavo.core.ports import Backend
from octavo.core.sampling import SamplingParams


def ledger(**changes: int) -> LedgerBackend:
    return LedgerBackend(**{"num_blocks": 6, "block_size": 2, "vocab_size": 8, "max_model_len": 12, **changes})


def sample(choice: int = 0, index: int = 0, **params) -> Sample:
    return Sample(SamplingParams(**{"temperature": 0.0, **params}), 7, choice, index)


def work(name: str, start: int, tokens: tuple[int, ...], blocks: tuple[int, ...], *samples: Sample) -> Work:
    return Work(name, 0, start, tokens, blocks, samples)


def run(backend: LedgerBackend, *works: Work, copies: tuple[BlockCopy, ...] = ()) -> list[int]:
    result = backend.execute(StepPlan(1, works, copies))
    return [token.token for answer in result.results for token in answer.sampled]


def test_it_is_a_backend() -> None:
    assert isinstance(ledger(), Backend)
    assert ledger().capacity() == ledger().capacity()


@pytest.mark.parametrize(
    ("works", "says"),
    [
        ([work("r", 2, (1,), (0, 1))], "never written"),
        ([work("r", 0, (1,), (0,)), work("s", 0, (1,), (0,))], "write the same cell"),
        ([work("r", 0, (1, 2, 3), (0,))], "past its 1 blocks"),
        ([work("r", 0, (1,), (6,))], "not in the pool"),
        ([work("r", 0, (), (0,))], "no tokens"),
        ([work("r", 0, (8,), (0,))], "out of range"),
        ([work("r", 0, (1,) * 13, tuple(range(6)))], "past its 6 blocks"),
    ],
)
def test_a_plan_that_breaks_a_law_is_refused(works: list[Work], says: str) -> None:
    with pytest.raises(LedgerError, match=says):
        run(ledger(), *works)


def test_reading_what_this_step_writes_for_another_is_refused() -> None:
    backend = ledger()
    run(backend, work("r", 0, (1, 2), (0,)))
    with pytest.raises(LedgerError, match="from a cell that this step writes"):
        run(backend, work("r", 2, (3,), (0, 1)), work("s", 0, (5,), (0,)))


@pytest.mark.parametrize(
    ("later", "what"),
    [
        (work("s", 2, (3,), (1, 2)), "another prefix's block"),
        (work("s", 4, (3,), (1, 0, 2)), "blocks out of order"),
    ],
)
def test_another_s_kv_is_noticed(later: Work, what: str) -> None:
    backend = ledger()
    run(backend, work("r", 0, (1, 2, 3, 4), (0, 1)))
    with pytest.raises(LedgerError, match="another's KV"):
        run(backend, later)


def test_equal_tokens_after_another_prefix_are_noticed() -> None:
    """As in a real cache: KV depends on all that came before, not only on its own token."""
    backend = ledger()
    run(backend, work("r", 0, (1, 2, 5, 6), (0, 1)), work("s", 0, (3, 4, 5, 6), (2, 3)))
    with pytest.raises(LedgerError, match="another's KV"):
        run(backend, work("r", 4, (7,), (0, 3, 4)))


def test_a_copied_block_reads_as_the_original_and_copies_go_in_order() -> None:
    backend = ledger()
    run(backend, work("r", 0, (1, 2, 3), (0, 1)))
    (due,) = run(backend, work("r", 3, (4,), (0, 1), sample()))
    copies = (BlockCopy(1, 2), BlockCopy(0, 1))
    assert run(backend, work("s", 3, (4,), (1, 2), sample()), copies=copies) == [due]
    with pytest.raises(LedgerError, match="copied to itself"):
        run(backend, copies=(BlockCopy(1, 1),))


def test_a_copy_of_an_unwritten_cell_is_unwritten() -> None:
    backend = ledger()
    run(backend, work("r", 0, (1, 2), (1,)))
    with pytest.raises(LedgerError, match="never written"):
        run(backend, work("r", 2, (3,), (1, 2)), copies=(BlockCopy(0, 1),))


def test_chunks_and_neighbours_change_nothing() -> None:
    whole = run(ledger(), work("r", 0, (1, 2, 3, 4, 5), (0, 1, 2), sample()))
    backend = ledger()
    run(backend, work("r", 0, (1, 2), (3,)), work("s", 0, (6,), (0,)))
    assert run(backend, work("r", 2, (3, 4, 5), (3, 4, 5), sample()), work("s", 1, (6,), (0,))) == whole


def test_every_token_of_the_past_matters() -> None:
    due = run(ledger(vocab_size=1000), work("r", 0, (1, 2, 3, 4), (0, 1), sample()))
    for position in range(4):
        tokens = tuple(token + (i == position) for i, token in enumerate((1, 2, 3, 4)))
        assert run(ledger(vocab_size=1000), work("r", 0, tokens, (0, 1), sample())) != due


def draws(samples: list[Sample]) -> list[int]:
    return run(ledger(vocab_size=1000), work("r", 0, (1, 2), (0,), *samples))


def test_with_a_temperature_the_draw_depends_on_seed_choice_and_index_and_without_on_none() -> None:
    variants = [sample(), sample(choice=1), sample(index=1)]
    assert len(set(draws(variants))) == 1
    hot = [sample(temperature=1.0), sample(choice=1, temperature=1.0), sample(index=1, temperature=1.0)]
    assert len(set(draws(hot))) == 3
    assert draws(hot) == draws(hot)


def test_bans_allowed_ids_and_the_alphabet_are_kept() -> None:
    params = SamplingParams(temperature=0.0)
    (best,) = draws([Sample(params, 0, 0, 0)])
    assert draws([Sample(params, 0, 0, 0, banned=(best,))]) == [(best + 1) % 1000]
    only = SamplingParams(temperature=1.0, allowed_token_ids=(3, 4))
    assert set(draws([Sample(only, seed, 0, 0) for seed in range(20)])) == {3, 4}
    backend = ledger(alphabet=2)
    assert set(run(backend, *[work(f"r{i}", 0, (i,), (i,), sample()) for i in range(6)])) <= {0, 1}


def test_a_work_that_may_draw_nothing_fails_alone() -> None:
    nothing = Sample(SamplingParams(allowed_token_ids=(3,)), 0, 0, 0, banned=(3,))
    result = ledger().execute(StepPlan(1, (work("r", 0, (1,), (0,), nothing), work("s", 0, (1,), (1,), sample()))))
    assert [answer.error for answer in result.results] == ["no token may be drawn: all are banned", None]


def test_logprobs_are_of_one_distribution() -> None:
    target = Work("r", 0, 0, (1, 2), (0,), (sample(logprobs=8),), (2,), 8)
    (answer,) = ledger().execute(StepPlan(1, (target,))).results
    for scored in (*answer.sampled, *answer.scored):
        assert scored.rank is not None
        assert scored.alternatives[scored.rank - 1] == (scored.token, scored.logprob)
        logprobs = [logprob for _, logprob in scored.alternatives]
        assert logprobs == sorted(logprobs, reverse=True)
        assert abs(sum(2.718281828459045**logprob for logprob in logprobs) - 1) < 1e-9
    assert answer.sampled[0].rank == 1, "greedy takes the best"
