"""First and next tokens, as clients wait for them."""

from octavo.control.latencies import Latencies
from octavo.core.events import Event, Finished, Generated, Queued, Refused
from octavo.core.plan import ScoredToken
from octavo.core.types import FinishReason


def token(name: str, time_s: float, choice: int = 0, count: int = 1) -> Generated:
    return Generated(name, choice, time_s, (ScoredToken(1),) * count)


def over(name: str, time_s: float, choice: int = 0) -> Finished:
    return Finished(name, choice, time_s, FinishReason.LENGTH)


def noted(*steps: list[Event]) -> Latencies:
    latencies = Latencies()
    for events in steps:
        latencies.note(events)
    return latencies


def test_a_first_token_counts_from_the_arrival() -> None:
    latencies = noted([Queued("a", 5.0, 3, arrival_s=4.0), Queued("b", 5.0, 3)], [token("a", 6.0), token("b", 6.0)])
    assert (latencies.ttft.weight, latencies.ttft.quantile(1.0), latencies.ttft.quantile(0.5)) == (2, 2.0, 1.0)
    assert latencies.itl.weight == 0 and latencies.num_next == 0


def test_of_several_choices_the_first_token_of_one_is_the_request_s() -> None:
    latencies = noted([Queued("a", 0.0, 3, 2)], [token("a", 1.0, 0), token("a", 1.0, 1)], [token("a", 3.0, 1)])
    assert latencies.ttft.weight == 1
    assert (latencies.itl.weight, latencies.itl.quantile(1.0)) == (1, 2.0)


def test_tokens_that_come_together_share_their_time() -> None:
    latencies = noted([Queued("a", 0.0, 3)], [token("a", 1.0)], [token("a", 4.0, count=3)])
    assert (latencies.itl.weight, latencies.itl.quantile(1.0)) == (3, 1.0)


def test_who_waited_equally_long_in_a_step_is_one_value() -> None:
    names = [f"r{i}" for i in range(50)]
    latencies = noted(
        [Queued(name, 0.0, 3) for name in names], [token(n, 1.0) for n in names], [token(n, 1.5) for n in names]
    )
    assert (len(latencies.itl), latencies.itl.weight) == (1, 50)
    assert (latencies.num_next, latencies.longest_s) == (50, 0.5)
    latencies.note([])
    assert (latencies.num_next, latencies.longest_s) == (0, 0.0), "in what was noted last nobody had one"


def test_who_is_over_is_forgotten_and_who_is_unknown_ignored() -> None:
    latencies = noted(
        [Queued("a", 0.0, 3, 2), Queued("b", 0.0, 3), Refused("c", 0.0, "queue_full", "", 1)],
        [token("a", 1.0), token("b", 1.0), token("stranger", 1.0), over("stranger", 1.0)],
        [over("a", 2.0, 0), over("b", 2.0)],
    )
    assert latencies.num_followed == 1
    latencies.note([over("a", 3.0, 1), token("a", 4.0)])
    assert latencies.num_followed == 0 and latencies.itl.weight == 0
