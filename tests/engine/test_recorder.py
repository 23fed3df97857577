"""What a record takes, against what it says that it takes: its bound is one of memory."""

import gc
import tracemalloc
from array import array
from collections.abc import Callable

import pytest

from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.core.structured import Structure, StructuredOutput
from octavo.core.throttle import Throttle
from octavo.core.types import Limits
from octavo.engine.recorder import Committed, Planned, Quiet, Record, RecordedScheduler
from octavo.engine.wire import Submit, frame, read_command

COUNT = 300
LIMITS = Limits(num_blocks=8, block_size=4, vocab_size=50_000, max_model_len=1000, max_num_queued_reqs=0)


def long_request(number: int, params: SamplingParams, prompt_len: int) -> Request:
    prompt = tuple(range(300 + number, 300 + number + prompt_len))
    name = f"cmpl-{number:024x}-0"
    return Request(request_id=name, prompt=prompt, params=params, seed=2**40 + number, tenant="red", namespace=bytes(8))


PARAMS: dict[str, Callable[[int], SamplingParams]] = {
    "plain": lambda number: SamplingParams(),
    "bias": lambda number: SamplingParams(logit_bias=tuple((300 + number + at, 1.5) for at in range(100))),
    "allowed": lambda number: SamplingParams(allowed_token_ids=tuple(range(300 + number, 400 + number))),
    "stops": lambda number: SamplingParams(stop=tuple(f"stop {number} {at}" for at in range(20))),
    "schema": lambda number: SamplingParams(
        structured_outputs=StructuredOutput(Structure.REGEX, f"{number}[a-z]" + "x" * 3000)
    ),
}


def measured(record: Record, fill: Callable[[Record], None]) -> float:
    """Bytes that were taken, as a share of those that the record counts."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        fill(record)
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - before) / record.num_bytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("prompt_len", [1, 200])
@pytest.mark.parametrize("kind", PARAMS)
def test_requests_take_no_more_than_is_counted(kind: str, prompt_len: int) -> None:
    """As they come over the wire, and are withdrawn at once."""
    asked = [long_request(number, PARAMS[kind](number), prompt_len) for number in range(COUNT)]
    bodies = [frame(Submit(number, request))[4:] for number, request in enumerate(asked)]

    def fill(record: Record) -> None:
        scheduler = RecordedScheduler(LIMITS, record=record)
        for number, body in enumerate(bodies):
            command = read_command(body)
            assert isinstance(command, Submit)
            scheduler.submit(command.request, float(number))
            scheduler.cancel(command.request.request_id, number + 0.5)

    assert 0.3 < measured(Record(), fill) < 1.1


@pytest.mark.parametrize("num_works", [1, 64])
def test_steps_take_no_more_than_is_counted(num_works: int) -> None:
    def fill(record: Record) -> None:
        for number in range(COUNT):
            record.add(Planned(number + 0.5, array("I", [1000] * 7 * num_works), 0, 1000 + number))
            record.add(Committed(number + 0.6, array("i", [1] * num_works), array("i", [7] * num_works)))

    assert 0.5 < measured(Record(), fill) < 1.1


def test_moments_when_nothing_was_live_take_no_more_than_is_counted() -> None:
    def fill(record: Record) -> None:
        for number in range(COUNT):
            lengths = {group: (number + group / 3, group) for group in range(1, 12)}
            record.add(Quiet(number + 0.5, 1000 + number, 0, Throttle(512, 4), lengths))

    assert 0.5 < measured(Record(), fill) < 1.1
