"""The simulated backend's own part: time, and the costs that it goes by. For its answers there is test_backend.py."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.backends.ledger import LedgerBackend
from octavo.backends.simulated import MeasuredStep, SimulatedBackend, StepCosts, VirtualTime
from octavo.backends.simulated.costs import StepShape
from octavo.core.plan import StepPlan, Work


def shapes(count: int, seed: int = 1) -> list[StepShape]:
    rng = random.Random(seed)
    return [StepShape(rng.randint(1, 2000), rng.randint(1, 64), rng.randint(1, 10**6)) for _ in range(count)]


def measured(costs: StepCosts, noise: float = 0.0) -> list[MeasuredStep]:
    rng = random.Random(2)
    return [MeasuredStep(s, costs.seconds(s) * (1 + rng.uniform(-noise, noise))) for s in shapes(200)]


def test_time_goes_on_by_what_the_costs_say() -> None:
    time = VirtualTime()
    ledger = LedgerBackend(num_blocks=8, block_size=4, vocab_size=10, max_model_len=32)
    backend = SimulatedBackend(ledger, StepCosts(base_s=1.0, token_s=0.1, seq_s=0.01, read_s=0.001), time)
    result = backend.execute(StepPlan(1, (Work("a", 0, 0, (1, 2, 3), (0,)), Work("b", 0, 0, (4,), (1,)))))
    assert time() == pytest.approx(1.0 + 0.4 + 0.02 + 0.007)
    assert result.timings_s == {"execute": pytest.approx(time())}
    backend.execute(StepPlan(2))
    assert time() == pytest.approx(1.427), "a plan without work takes no time"


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="does not go back"):
        VirtualTime().advance(-1.0)


positive = st.floats(1e-6, 1e-2)


@given(st.builds(StepCosts, base_s=positive, token_s=positive, seq_s=positive, read_s=st.just(0.0) | positive))
def test_costs_are_found_again_in_steps_that_they_made(costs: StepCosts) -> None:
    found = StepCosts.fitted(measured(costs))
    for shape in shapes(20, seed=3):
        assert found.seconds(shape) == pytest.approx(costs.seconds(shape), rel=1e-4)


def test_noise_moves_them_little() -> None:
    costs = StepCosts(base_s=0.01, token_s=0.0004, seq_s=0.001, read_s=1e-8)
    found = StepCosts.fitted(measured(costs, noise=0.2))
    for shape in shapes(20, seed=3):
        assert found.seconds(shape) == pytest.approx(costs.seconds(shape), rel=0.1)


def test_no_cost_comes_out_below_zero() -> None:
    """Steps that take the longer the fewer sequences they have: it is the tokens."""
    steps = [MeasuredStep(s, 0.01 + 1e-4 * s.num_tokens - 1e-5 * s.num_seqs) for s in shapes(50)]
    found = StepCosts.fitted(steps)
    assert found.seq_s == 0.0 and found.token_s == pytest.approx(1e-4, rel=0.05)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="takes time"):
        StepCosts(base_s=0.0, token_s=0.0)
    with pytest.raises(ValueError, match="takes time"):
        StepCosts(base_s=0.1, token_s=-0.1)
    with pytest.raises(ValueError, match="4 steps or more"):
        StepCosts.fitted(measured(StepCosts(base_s=1.0, token_s=1.0))[:3])
