"""What is made in every decode is what its class makes, of the same fields."""

from octavo.core.events import Generated, generated
from octavo.core.plan import Sample, ScoredToken, Work, WorkResult, bare, decode, drawn, plain_sample
from octavo.core.sampling import SamplingParams

PARAMS = SamplingParams()


def test_a_plain_sample_is_a_sample_that_asks_for_nothing_else() -> None:
    made = plain_sample(PARAMS, 7, 1, 5, (2, 3))
    assert type(made) is Sample and made == Sample(PARAMS, 7, 1, 5, (2, 3))


def test_a_decode_is_a_work_that_asks_for_nothing_else() -> None:
    samples = (Sample(PARAMS, 7, 1, 5),)
    made = decode("r", 1, 20, (9,), (4, 8), samples)
    assert type(made) is Work and made == Work("r", 1, 20, (9,), (4, 8), samples)


def test_a_bare_token_is_one_value_for_all_who_say_it() -> None:
    assert bare(9) == (ScoredToken(9),) and bare(9) is bare(9)


def test_what_was_drawn_is_a_result_with_nothing_else_in_it() -> None:
    made = drawn("r", 1, bare(9))
    assert type(made) is WorkResult and made == WorkResult("r", 1, bare(9))


def test_what_was_generated_is_told_as_ever() -> None:
    made = generated("r", 1, 0.5, bare(9))
    assert type(made) is Generated and made == Generated("r", 1, 0.5, bare(9))
