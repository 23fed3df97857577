"""The default model's answers against Transformers' (float32, the same weights): tests/golden/smollm2.json.

A greedy run is checked by teacher forcing: the golden tokens are fed back, and at each place the best token must be the
golden one. A run that decodes gives the same bits (tests/contract), so it gives the same tokens. Beams are searched for
by the scheduler, and are the same token for token.
"""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from octavo.backends.cpu import CpuBackend, CpuModel
from octavo.backends.reference import ReferenceBackend
from octavo.core.events import Generated
from octavo.core.plan import ScoredToken, StepPlan, Work
from octavo.core.ports import Backend
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.core.types import Limits
from octavo.loaders import open_checkpoint
from octavo.loaders.dequant import dequantize
from octavo.models.checkpoint import Checkpoint
from tests.contract.driver import Run, finish
from tests.contract.implementations import ISAS

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "smollm2.json").read_text("utf-8"))
GREEDY: list[dict[str, Any]] = GOLDEN["greedy"]
BEAMS: list[dict[str, Any]] = GOLDEN["beam"]
SHORTEST = sorted(GREEDY, key=lambda entry: len(entry["prompt_token_ids"] + entry["token_ids"]))

LOGPROB_ERROR = 1e-4
"""Float32 over 30 layers against another order of additions; the golden file rounds to 5e-6."""
GAP_ERROR = 2 * LOGPROB_ERROR
"""Where the two best logits are closer than this, either may win."""

BLOCK = 16
NUM_BLOCKS = 256
MAX_MODEL_LEN = 1024
SIZES = {"num_blocks": NUM_BLOCKS, "block_size": BLOCK, "max_model_len": MAX_MODEL_LEN}


@pytest.fixture(scope="module")
def checkpoint(default_model: Path) -> Checkpoint:
    return open_checkpoint(default_model)


@pytest.fixture(scope="module")
def reference(checkpoint: Checkpoint) -> Iterator[Backend]:
    backend = ReferenceBackend(checkpoint, dequantize=dequantize, **SIZES)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def native(checkpoint: Checkpoint) -> Callable[..., CpuBackend]:
    """Opens a native backend by kernel set (None: the machine's best), weight and cache formats; each once."""

    @cache
    def load(isa: str | None, dtype: str) -> CpuModel:
        return CpuModel.load(checkpoint, dtype=dtype, isa=isa)

    def open_native(isa: str | None, dtype: str, kv: str) -> CpuBackend:
        return CpuBackend(load(isa, dtype), kv_cache_dtype=kv, **SIZES)

    return open_native


def scored_continuation(backend: Backend, entry: dict[str, Any]) -> tuple[ScoredToken, ...]:
    """Each golden token's place in the distribution that the prompt and the golden tokens before it give."""
    prompt, golden = entry["prompt_token_ids"], entry["token_ids"]
    table = tuple(range(-(-(len(prompt) + len(golden)) // BLOCK)))
    start = len(prompt) - 1
    tail = (prompt[-1], *golden[:-1])
    works = [Work("golden", 0, start, tail, table, (), tuple(golden), 1)]
    if start:
        works.insert(0, Work("golden", 0, 0, tuple(prompt[:-1]), table))
    for number, work in enumerate(works):
        result = backend.execute(StepPlan(number, (work,))).results[0]
        assert result.error is None
    return result.scored


def check_continuation(backend: Backend, entry: dict[str, Any]) -> None:
    scored = scored_continuation(backend, entry)
    for place, golden, logprob, gap in zip(
        scored, entry["token_ids"], entry["logprobs"], entry["top2_gap"], strict=True
    ):
        assert place.logprob == pytest.approx(logprob, abs=LOGPROB_ERROR)
        assert place.alternatives[0][0] == golden or gap <= GAP_ERROR


# -- float32: the same tokens and logprobs ---------------------------------------------------------------------------


@pytest.mark.parametrize("entry", SHORTEST[:2], ids=lambda entry: entry["text"][:24])
def test_the_reference_gives_the_golden_answers(reference: Backend, entry: dict[str, Any]):
    check_continuation(reference, entry)


@pytest.mark.slow
@pytest.mark.parametrize("entry", SHORTEST[2:], ids=lambda entry: entry["text"][:24])
def test_the_reference_gives_all_golden_answers(reference: Backend, entry: dict[str, Any]):
    check_continuation(reference, entry)


@pytest.mark.parametrize("entry", SHORTEST[:6], ids=lambda entry: entry["text"][:24])
def test_native_float32_gives_the_golden_answers(native: Callable[..., Backend], entry: dict[str, Any]):
    check_continuation(native(None, "float32", "float32"), entry)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("entry", SHORTEST, ids=lambda entry: entry["text"][:24])
def test_native_float32_gives_all_golden_answers(native: Callable[..., Backend], entry: dict[str, Any], isa: str):
    check_continuation(native(isa, "float32", "float32"), entry)


@pytest.mark.slow
def test_native_float32_decodes_the_golden_tokens(native: Callable[..., Backend]):
    """All prompts in one batch, token by token, up to the first place where either token may win."""
    backend = native(None, "float32", "float32")
    params = SamplingParams(temperature=0)
    runs = [
        Run(entry["text"], tuple(entry["prompt_token_ids"]), params, tuple(range(12 * i, 12 * i + 12)))
        for i, entry in enumerate(GREEDY)
    ]
    finish(backend, runs, max(len(entry["token_ids"]) for entry in GREEDY))
    for run, entry in zip(runs, GREEDY, strict=True):
        sure = next((i for i, gap in enumerate(entry["top2_gap"]) if gap <= GAP_ERROR), len(entry["token_ids"]))
        assert [token.token for token in run.generated[:sure]] == entry["token_ids"][:sure]


# -- beam search: the same beams -------------------------------------------------------------------------------------

EOS = 2
BEAM_PARAMS = SamplingParams(use_beam_search=True, n=4, max_tokens=24, early_stopping=True)


def check_beams(backend: Backend, entries: list[dict[str, Any]]) -> None:
    """All searches at once, in one pool. The golden file fills a beam that ended early with its last token."""
    sizes = {"num_blocks": NUM_BLOCKS, "block_size": BLOCK, "vocab_size": backend.capacity().vocab_size}
    scheduler = Scheduler(Limits(max_model_len=MAX_MODEL_LEN, eos_token_ids=(EOS,), **sizes))
    for entry in entries:
        prompt = tuple(entry["prompt_token_ids"])
        scheduler.submit(Request(request_id=entry["text"], prompt=prompt, params=BEAM_PARAMS), 0.0)
    found: dict[str, list[tuple[ScoredToken, ...]]] = {entry["text"]: [] for entry in entries}
    while scheduler.has_work:
        plan = scheduler.plan(0.0)
        for event in scheduler.commit(plan, backend.execute(plan), 0.0):
            if isinstance(event, Generated):
                found[event.request_id].append(event.tokens)
    for entry in entries:
        for tokens, beam in zip(found[entry["text"]], entry["beams"], strict=True):
            golden = beam["token_ids"]
            length = golden.index(EOS) + 1 if EOS in golden else len(golden)
            assert [token.token for token in tokens] == golden[:length]
            score = sum(token.logprob or 0 for token in tokens) / length
            assert score == pytest.approx(beam["score"], abs=LOGPROB_ERROR)


def test_native_float32_finds_the_golden_beams(native: Callable[..., Backend]):
    check_beams(native(None, "float32", "float32"), BEAMS)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ISAS)
def test_every_kernel_set_finds_the_golden_beams(native: Callable[..., Backend], isa: str):
    check_beams(native(isa, "float32", "float32"), BEAMS)


def test_the_reference_finds_golden_beams(reference: Backend):
    check_beams(reference, BEAMS[:1])


@pytest.mark.slow
@pytest.mark.parametrize("entry", BEAMS[1:], ids=lambda entry: entry["text"][:24])
def test_the_reference_finds_all_golden_beams(reference: Backend, entry: dict[str, Any]):
    check_beams(reference, [entry])


# -- the text: mean negative log-likelihood --------------------------------------------------------------------------


def mean_nll(backend: Backend) -> float:
    """By the golden file's rule: each window of 513 ids predicts its last 512 from its first 512, alone."""
    text: dict[str, Any] = GOLDEN["perplexity"]
    ids, window = text["token_ids"], text["window"]
    table = tuple(range(window // BLOCK))
    logprobs: list[float] = []
    for first in range(0, len(ids) - 1, window):
        part = ids[first : first + window + 1]
        work = Work("text", 0, 0, tuple(part[:-1]), table, (), tuple(part[1:]))
        scored = backend.execute(StepPlan(first, (work,))).results[0].scored
        logprobs += [place.logprob for place in scored if place.logprob is not None]
    assert len(logprobs) == text["num_predicted"]
    return -sum(logprobs) / len(logprobs)


def check_default_path(backend: Backend, say: Callable[[str, object], None]) -> None:
    nll = mean_nll(backend)
    golden = GOLDEN["perplexity"]["mean_nll"]
    say("mean NLL", f"{nll:.5f}, golden {golden:.5f}, {100 * (nll / golden - 1):+.3f} %")
    assert nll == pytest.approx(golden, rel=0.005)


@pytest.mark.parametrize("kv", ["auto", "int8"])
def test_the_default_path_reads_the_text_within_half_a_percent(native: Callable[..., Backend], kv: str, say):
    check_default_path(native(None, "auto", kv), say)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ISAS)
def test_every_kernel_set_reads_the_text_within_half_a_percent(native: Callable[..., Backend], isa: str, say):
    check_default_path(native(isa, "auto", "auto"), say)


@pytest.mark.slow
@pytest.mark.parametrize(("kv", "error"), [("float32", 2e-5), ("float16", 1e-4), ("bfloat16", 1e-3), ("int8", 3e-3)])
def test_native_float32_reads_the_text_as_transformers_does(native: Callable[..., Backend], kv: str, error: float):
    """The weights are exact, so what is left is the format of the cache."""
    assert mean_nll(native(None, "float32", kv)) == pytest.approx(GOLDEN["perplexity"]["mean_nll"], abs=error)


def test_the_default_path_mostly_agrees_with_the_golden_tokens(native: Callable[..., Backend], say):
    """Quantised activations and a bfloat16 cache may part where the gap is small: how often is reported."""
    backend = native(None, "auto", "auto")
    agreed: list[bool] = []
    first_agreed: list[bool] = []
    for entry in GREEDY:
        best = [place.alternatives[0][0] == place.token for place in scored_continuation(backend, entry)]
        agreed += best
        first_agreed += best[:1]
    say("agreement", f"{sum(agreed)} of {len(agreed)} tokens, {sum(first_agreed)} of {len(first_agreed)} first ones")
    assert sum(agreed) >= 0.95 * len(agreed)


@pytest.fixture
def say(record_property: Callable[[str, object], None], capsys: pytest.CaptureFixture[str]):
    """Reports a figure: to the terminal, and into the JUnit file where there is one."""

    def report(name: str, value: object) -> None:
        record_property(name, value)
        with capsys.disabled():
            print(f"\n  {name}: {value}")

    return report
