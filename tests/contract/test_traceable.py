"""The contract of core.ports.Traceable, on all who claim it: the same bits, all of the time, counts by the shapes."""

from collections.abc import Iterator

import pytest

from octavo.backends.cpu import CpuBackend
from octavo.core.plan import StepPlan, StepResult
from octavo.core.ports import Capacity, KernelSpan, Traceable
from octavo.core.sampling import SamplingParams
from octavo.models.spec import ModelSpec
from tests.contract.driver import Run, finish, step
from tests.contract.implementations import CPU_KINDS, ISAS, MAX_MODEL_LEN, CpuKind, cpu_model

BLOCK = 8
GREEDY = SamplingParams(temperature=0, logprobs=2)
BEST = ISAS[0]
ONE_GROUP = [name for name, kind in CPU_KINDS.items() if name != "windows"]


class Traced:
    """A Backend that asks another one for its spans."""

    def __init__(self, backend: Traceable) -> None:
        self.backend = backend
        self.spans: list[KernelSpan] = []

    def capacity(self) -> Capacity:
        raise NotImplementedError

    def execute(self, plan: StepPlan) -> StepResult:
        result, spans = self.backend.execute_traced(plan)
        self.spans += spans()
        return result

    def close(self) -> None:
        return


def opened(kind: CpuKind, isa: str = BEST) -> CpuBackend:
    """Of one KV group, so that block tables are as they are, windows or not."""
    model = cpu_model(isa, kind)
    return CpuBackend(model, num_blocks=80, block_size=BLOCK, max_model_len=MAX_MODEL_LEN, kv_cache_dtype=kind.kv)


@pytest.fixture(params=ONE_GROUP)
def kind(request: pytest.FixtureRequest) -> CpuKind:
    return CPU_KINDS[request.param]


@pytest.fixture
def traced(kind: CpuKind) -> Iterator[Traced]:
    backend = opened(kind)
    assert isinstance(backend, Traceable)
    yield Traced(backend)
    backend.close()


def runs(*lengths: int) -> list[Run]:
    """Requests of these lengths, each on blocks of its own."""
    return [
        Run(f"r{i}", tuple((7 * i + j) % 250 for j in range(length)), GREEDY, tuple(range(26 * i, 26 * (i + 1))))
        for i, length in enumerate(lengths)
    ]


def test_a_traced_step_gives_the_same_bits(traced: Traced, kind: CpuKind) -> None:
    watched, plain = runs(20, 3), runs(20, 3)
    finish(traced, watched, 4)
    finish(opened(kind), plain, 4)
    assert [run.outcome for run in watched] == [run.outcome for run in plain]


def test_spans_follow_one_another_without_gaps(traced: Traced) -> None:
    step(traced, runs(20, 3))
    ends = [span.ended_s for span in traced.spans]
    assert [span.began_s for span in traced.spans[1:]] == ends[:-1] and ends == sorted(ends)
    assert traced.spans[0].op == "check" and traced.spans[-1].op == "sample"


def products(spec: ModelSpec) -> dict[str, int]:
    """Elements of each matrix of a layer, and of the output head."""
    heads, hidden = spec.num_heads * spec.head_dim, spec.hidden_size
    return {
        "qkv": (heads + 2 * spec.num_kv_heads * spec.head_dim) * hidden,
        "o": heads * hidden,
        "gate_up": 2 * spec.intermediate_size * hidden,
        "down": spec.intermediate_size * hidden,
        "head": spec.vocab_size * hidden,
    }


def goes_last(span: KernelSpan, spec: ModelSpec) -> bool:
    """Whether it comes behind the last keys and values, where only rows go on that somebody reads."""
    return span.layer == spec.num_layers - 1 and span.op in ("o", "gate_up", "down")


def test_products_are_counted_by_their_shapes_and_weights_by_their_bytes(traced: Traced, kind: CpuKind) -> None:
    step(traced, runs(20, 3))
    model = cpu_model(BEST, kind)
    matmuls = [span for span in traced.spans if span.kernel in ("matmul", "head")]
    for span in matmuls:
        rows = 2 if span.op == "head" or goes_last(span, model.spec) else 23
        assert span.operations == 2 * rows * products(model.spec)[span.op]
        assert span.rows == rows
    layers = [span.layer for span in matmuls if span.op == "qkv"]
    assert layers == list(range(model.spec.num_layers))
    embed = next(span for span in traced.spans if span.op == "embed")
    assert sum(span.streamed_bytes for span in matmuls) + model.embed.num_bytes == model.weight_bytes
    assert embed.streamed_bytes == pytest.approx(23 / model.spec.vocab_size * model.embed.num_bytes)


def test_more_rows_than_a_chunk_stream_the_weights_again(traced: Traced, kind: CpuKind) -> None:
    step(traced, runs(200, 200, 200))
    matmuls = [span for span in traced.spans if span.kernel == "matmul" and span.layer == 0]
    chunk = max(span.rows for span in matmuls)
    num_whole, rest = divmod(600, chunk)
    assert num_whole and {span.rows for span in matmuls} == {chunk, rest}
    once = sum(span.streamed_bytes for span in matmuls if span.rows == rest)
    assert sum(span.streamed_bytes for span in matmuls) == (num_whole + 1) * once > 0
    operations = 2 * 600 * products(cpu_model(BEST, kind).spec)["down"]
    assert sum(span.operations for span in matmuls if span.op == "down") == operations


def test_of_a_prompt_only_rows_that_are_read_go_through_the_end_of_the_last_layer(
    traced: Traced, kind: CpuKind
) -> None:
    step(traced, runs(200, 100))
    spec = cpu_model(BEST, kind).spec
    last = [span for span in traced.spans if span.kernel == "matmul" and goes_last(span, spec)]
    rows = {op: sum(span.rows for span in last if span.op == op) for op in ("o", "gate_up", "down")}
    assert rows == {"o": 2, "gate_up": 2, "down": 2}
    attended = [span for span in traced.spans if span.kernel == "attend"]
    whole, end = (sum(s.operations for s in attended if s.layer == layer) for layer in (0, spec.num_layers - 1))
    assert 0 < end < whole / 10


def test_attention_is_counted_by_the_keys_that_rows_see(traced: Traced, kind: CpuKind) -> None:
    step(traced, runs(20, 3))
    model = cpu_model(BEST, kind)
    spec = model.spec
    for span in (span for span in traced.spans if span.kernel == "attend" and span.layer != spec.num_layers - 1):
        assert span.layer is not None
        window = spec.window(span.layer) or 10**9
        seen = sum(min(position + 1, window) for length in (20, 3) for position in range(length))
        assert span.operations == 4 * spec.head_dim * spec.num_heads * seen
        bytes_per_token = model.kv_bytes_per_token(kind.kv) / spec.num_layers
        assert span.streamed_bytes == pytest.approx(23 * bytes_per_token) and span.read_bytes > span.streamed_bytes


def test_a_decode_sees_what_is_before_it(kind: CpuKind) -> None:
    traced = Traced(opened(kind))
    finish(traced, runs(200), 2)
    last = [span for span in traced.spans if span.kernel == "attend"][-1]
    spec = cpu_model(BEST, kind).spec
    assert last.layer is not None
    assert last.operations == 4 * spec.head_dim * spec.num_heads * min(201, spec.window(last.layer) or 201)


def test_a_long_context_is_cut_into_splits_that_are_merged(kind: CpuKind) -> None:
    traced = Traced(opened(kind))
    run = Run("long", tuple(j % 250 for j in range(505)), GREEDY, tuple(range(64)))
    finish(traced, [run], 1)
    assert "merge" not in {span.kernel for span in traced.spans}
    long = Run("longer", tuple(j % 250 for j in range(520)), GREEDY, tuple(range(66)))
    finish(traced, [long], 2)
    merge = [span for span in traced.spans if span.kernel == "merge"][-1]
    attend = [span for span in traced.spans if span.kernel == "attend"][-1]
    spec = cpu_model(BEST, kind).spec
    assert merge.read_bytes > 0 and merge.ended_s >= attend.ended_s and attend.layer == merge.layer is not None
    assert attend.operations == 4 * spec.head_dim * spec.num_heads * min(521, spec.window(attend.layer) or 521)


@pytest.mark.parametrize("isa", ISAS)
def test_limits_are_measured_for_each_arithmetic_in_use(isa: str) -> None:
    for name in ("q4_1", "bf16", "int8", "f32"):
        backend = opened(CPU_KINDS[name], isa)
        rates = backend.measure_rates(0.0)
        step(traced := Traced(backend), runs(3))
        used = {span.arithmetic for span in traced.spans if span.operations}
        assert used == set(rates.operations_per_s)
        assert rates.bytes_per_s > 0 and min(rates.operations_per_s.values()) > 0
        backend.close()
