"""Embeddings of the default model through the whole engine: the same floats in whatever company, and `LLM.embed`."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, PoolingParams, SamplingParams
from octavo.config import ConfigError
from octavo.core.events import Admitted, Embedded, Event, Preempted
from octavo.core.parameter import ParameterError
from octavo.core.request import Request
from octavo.core.types import Pooling
from octavo.engine.loop import Order
from octavo.engine.outputs import GenerationError
from tests.engine.script import play
from tests.system.replicas import opened

HIDDEN_SIZE = 576
SEA = "The sea is"
TEXTS = [SEA, "1, 2, 3,", "A much longer text, about the sea and all that swims in it, and of the shore, and the wind."]


def prompt(number: int, length: int) -> tuple[int, ...]:
    return tuple((number * 7919 + position * 104729) % 40000 + 100 for position in range(length))


def asked(name: str = "x") -> list[Request]:
    return [
        Request(request_id=f"{name} {number}", prompt=prompt(number, length), pooling=pooling, priority=5)
        for number, (pooling, length) in enumerate([(Pooling.MEAN, 75), (Pooling.LAST, 70), (Pooling.MEAN, 3)])
    ]


def others(count: int, new: int = 6) -> list[Request]:
    params = SamplingParams(temperature=0.7, max_tokens=new, ignore_eos=True)
    return [
        Request(request_id=f"other {i}", prompt=prompt(10 + i, 3 + 5 * i), params=params, seed=i) for i in range(count)
    ]


Totals = dict[str, bytes]


def run(model: Path, turns: Sequence[Sequence[Order]], **options: Any) -> tuple[Totals, list[Event]]:
    with opened(model, **{"max_model_len": 256, "max_num_seqs": 17} | options) as built:
        events = play(built, *turns).events
    return totals(events), events


def totals(events: Sequence[Event]) -> Totals:
    return {event.request_id: event.total for event in events if isinstance(event, Embedded)}


@pytest.fixture(scope="module")
def alone(default_model: Path) -> Totals:
    """Each by itself, in one chunk, on one thread, into an empty cache."""
    found: Totals = {}
    for request in asked():
        found |= run(default_model, [[request]], num_threads=1)[0]
    return found


def test_among_others_on_two_threads(default_model: Path, alone: Totals):
    company = others(9)
    found, _ = run(default_model, [[*company[:5], *asked()], company[5:]], num_threads=2)
    assert found == alone


@pytest.mark.parametrize("budget", [7, 16])
def test_in_chunks(default_model: Path, alone: Totals, budget: int):
    options = {"max_num_batched_tokens": budget, "max_num_seqs": budget}
    found, _ = run(default_model, [[*others(3), *asked()]], **options)
    assert found == alone


def test_where_the_prompts_are_cached(default_model: Path, alone: Totals):
    """The mean computes all of its prompt anyway; the last token's hidden state is read over cached blocks."""
    with opened(default_model, max_model_len=256) as built:
        first, again = (play(built, asked(name)).events for name in ("first", "again"))
    hits = {event.request_id: event.cached_tokens for event in again if isinstance(event, Admitted)}
    assert list(hits.values()) == [0, 64, 0]
    assert list(totals(first).values()) == list(totals(again).values()) == list(alone.values())


def test_preempted(default_model: Path, alone: Totals):
    """Urgent ones take the blocks when some of the hidden states are added up."""
    urgent = Request(request_id="urgent", prompt=prompt(9, 90), params=SamplingParams(max_tokens=2))
    options = {"num_blocks": 8, "max_model_len": 112, "long_prefill_token_threshold": 30}
    options |= {"scheduling_policy": "priority", "max_num_partial_prefills": 3}
    found, events = run(default_model, [asked()[:1], (), [urgent]], **options)
    assert [event.request_id for event in events if isinstance(event, Preempted)] == ["x 0"]
    assert found["x 0"] == alone["x 0"]


# -- offline -----------------------------------------------------------------------------------------------------------


def embed(llm: LLM, prompts: Any, **params: Any) -> list[list[float]]:
    outputs = llm.embed(prompts, pooling_params=PoolingParams(**params), use_tqdm=False)
    return [output.outputs.embedding for output in outputs]


def test_a_batch_gives_what_each_text_gives_alone_in_their_order(llm: LLM):
    together = embed(llm, TEXTS)
    assert together == [embed(llm, text)[0] for text in TEXTS]
    assert [len(vector) for vector in together] == [HIDDEN_SIZE] * 3
    assert [math.hypot(*vector) for vector in together] == pytest.approx([1] * 3, abs=1e-6)


def test_outputs_have_vllm_s_shape(llm: LLM):
    (output,) = llm.embed(SEA, use_tqdm=False)
    assert output.prompt_token_ids == llm.get_tokenizer().encode(SEA)
    assert output.finished and output.outputs.hidden_size == HIDDEN_SIZE
    assert all(type(number) is float for number in output.outputs.embedding)


def test_prompts_are_what_generate_takes(llm: LLM):
    ids = llm.get_tokenizer().encode(SEA)
    shapes = [SEA, ids, {"prompt": SEA}, {"prompt_token_ids": ids}]
    assert len({tuple(vector) for vector in embed(llm, shapes)}) == 1
    assert embed(llm, []) == []


def test_dimensions_cut_and_then_normalise(llm: LLM):
    (raw,), (cut,) = embed(llm, SEA, use_activation=False), embed(llm, SEA, dimensions=8)
    size = math.hypot(*raw[:8])
    assert cut == pytest.approx([number / size for number in raw[:8]], rel=1e-6)
    assert size != pytest.approx(1)


def test_each_prompt_may_have_its_own_parameters(llm: LLM):
    params = [PoolingParams(dimensions=2), PoolingParams(), PoolingParams(dimensions=3)]
    outputs = llm.embed(TEXTS, pooling_params=params, use_tqdm=False)
    assert [output.outputs.hidden_size for output in outputs] == [2, HIDDEN_SIZE, 3]


def test_the_pooling_is_the_setting_s(default_model: Path, llm: LLM):
    with LLM(default_model, max_model_len=256, pooler_config={"pooling_type": "MEAN", "dimensions": 4}) as mean:
        one, many = embed(mean, ["sea", SEA], dimensions=HIDDEN_SIZE)
        (short,) = embed(mean, SEA)
    last_one, last_many = embed(llm, ["sea", SEA])
    assert one == last_one and many != last_many, "of one token, the mean is the last"
    assert len(short) == 4


@pytest.mark.parametrize(
    ("params", "error", "words"),
    [
        (PoolingParams(dimensions=577), ParameterError, "dimensions must be an integer from 1 to 576"),
        ([PoolingParams()] * 2, ValueError, "2 pooling parameters for 1 prompts"),
        (SamplingParams(), ValueError, "pooling_params is a PoolingParams, or a list with one for each prompt"),
    ],
)
def test_what_cannot_be_asked_is_refused(llm: LLM, params: Any, error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        llm.embed(SEA, pooling_params=params, use_tqdm=False)


def test_a_prompt_as_long_as_the_context_is_embedded_and_a_longer_one_refused(llm: LLM):
    assert embed(llm, [list(prompt(1, 2048))])
    with pytest.raises(ValueError, match="2049 tokens, more than the context of 2048"):
        embed(llm, [SEA, list(prompt(1, 2049))])
    assert embed(llm, SEA)


def test_more_dimensions_than_there_are_cannot_be_configured(default_model: Path):
    with pytest.raises(ConfigError, match=r"577 dimensions, but .* has 576"):
        LLM(default_model, pooler_config={"dimensions": 577})


def test_a_failing_step_is_an_error(default_model: Path):
    with (
        LLM(default_model, max_model_len=256, fault="prefill-error") as llm,
        pytest.raises(GenerationError, match="injected on purpose"),
    ):
        embed(llm, SEA)


def test_a_closed_llm_says_so(default_model: Path):
    llm = LLM(default_model, num_blocks=8, max_model_len=64)
    llm.close()
    with pytest.raises(RuntimeError, match=r"^this LLM is closed$"):
        embed(llm, SEA)
