"""A full queue in simulated time: who is sent away, and does it help to come back when one was told to?"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from octavo.core.events import Event, Finished, Queued, Refused
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.core.types import Limits
from tests.engine.timeline import Timeline, played

LIMITS = Limits(
    num_blocks=64,
    block_size=16,
    vocab_size=1000,
    max_model_len=512,
    max_num_seqs=8,
    max_num_batched_tokens=256,
)


def long_prompt(name: str, tenant: str = "") -> Request:
    tokens = tuple((sum(name.encode()) * 31 + at * 7) % 1000 for at in range(200))
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    return Request(request_id=name, prompt=tokens, params=params, tenant=tenant)


def burst(count: int, *, warm: int = 20) -> Iterator[tuple[float, Request]]:
    """`warm` of them to measure by, and then all at once."""
    yield from ((float(i), long_prompt(f"warm{i}")) for i in range(warm))
    yield from ((100.0, long_prompt(f"r{i}")) for i in range(count))


class Patient:
    """Clients who come back when they were told to, until they are served."""

    def __init__(self) -> None:
        self.requests: dict[str, Request] = {}
        self.refusals = Counter[str]()

    def heard(self, timeline: Timeline, event: Event) -> None:
        if isinstance(event, Refused):
            assert event.retry_after_s is not None
            name = event.request_id.split("#")[0]
            self.refusals[name] += 1
            again = replace(long_prompt(name), request_id=f"{name}#{self.refusals[name]}")
            timeline.add(event.time_s + event.retry_after_s, again)


@pytest.mark.parametrize("by", [{"max_num_queued_reqs": 16}, {"max_num_queued_tokens": 4000}], ids=["reqs", "tokens"])
def test_most_who_come_back_when_they_were_told_to_are_let_in(by: dict[str, int]) -> None:
    clients = Patient()
    timeline = played(replace(LIMITS, **by), burst(120), heard=clients.heard)
    assert len(timeline.of(Finished)) == 20 + 120, "who comes back is served in the end"
    sent_away = len(clients.refusals)
    refused_again = sum(count - 1 for count in clients.refusals.values())
    assert sent_away > 90
    assert refused_again < 0.2 * sent_away
    assert max(clients.refusals.values()) <= 3


@pytest.mark.parametrize("by", [{"max_num_queued_reqs": 16}, {"max_num_queued_tokens": 4000}], ids=["reqs", "tokens"])
def test_nothing_that_was_accepted_is_lost_and_all_is_decided_before_the_first_step(by: dict[str, int]) -> None:
    timeline = played(replace(LIMITS, **by), burst(500))
    queued, refused = timeline.of(Queued), timeline.of(Refused)
    assert len(queued) - 20 + len(refused) == 500
    assert {event.time_s for event in refused} == {100.0}
    finished = [event.request_id for event in timeline.of(Finished)]
    assert sorted(finished) == sorted(event.request_id for event in queued)
