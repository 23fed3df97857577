"""ReferenceBackend: runs a StepPlan with numpy, naively and completely. The golden answer for the other backends."""

import time
from collections.abc import Sequence

import numpy as np

from octavo.backends.reference.kv import Cells, kv_format
from octavo.backends.reference.network import matvec, token_hidden
from octavo.backends.reference.sampling import SampleError, draw, score
from octavo.backends.reference.weights import Array, Dequantize, load_weights
from octavo.core.plan import BlockCopy, HiddenSum, ScoredToken, StepPlan, StepResult, Work, WorkResult
from octavo.core.ports import Capacity
from octavo.core.types import NO_BLOCK
from octavo.models.checkpoint import Checkpoint
from octavo.models.layer_groups import layer_groups
from octavo.models.windows import first_key


class PlanError(ValueError):
    """A work that cannot be run as it stands: an id outside its range, or a block table that is too short."""


class ReferenceBackend:
    """A Backend in float32 throughout: weights, activations, and KV unless another format is asked for.

    Each token is computed by itself, so a result depends on its own request alone, bit for bit; nothing is fast.
    Raises ValueError for an activation or a cache format that it does not know, and what `load_weights` raises.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        dequantize: Dequantize,
        kv_cache_dtype: str = "auto",
    ) -> None:
        spec = checkpoint.spec
        if spec.activation != "silu":
            raise ValueError(f"{checkpoint.name}: activation {spec.activation!r} is not known, only 'silu' is")
        self._spec = spec
        self._weights = load_weights(checkpoint, dequantize)
        self._groups = layer_groups(spec)
        self._kv = kv_format(kv_cache_dtype)
        shape = (self._groups.slots, 2, num_blocks, block_size, spec.num_kv_heads)
        self._cache: Cells = np.zeros(shape, self._kv.cell(spec.head_dim))
        self._capacity = Capacity(
            num_blocks=num_blocks,
            block_size=block_size,
            vocab_size=spec.vocab_size,
            max_model_len=max_model_len,
            hidden_size=spec.hidden_size,
        )

    def capacity(self) -> Capacity:
        return self._capacity

    def execute(self, plan: StepPlan) -> StepResult:
        start_s = time.perf_counter()
        self._copy(plan.copies)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            results = tuple(self._run(work) for work in plan.work)
        return StepResult(plan.step, results, {"compute": time.perf_counter() - start_s})

    @property
    def block_bytes(self) -> int:
        return self._cache[:, :, 0].nbytes

    def read_block(self, block: int) -> memoryview:
        _check_range("block", block, self._capacity.num_blocks)
        return memoryview(self._cache[:, :, block].tobytes())

    def write_block(self, block: int, raw: memoryview) -> None:
        _check_range("block", block, self._capacity.num_blocks)
        if len(raw) != self.block_bytes:
            raise PlanError(f"a block has {self.block_bytes} bytes, not {len(raw)}")
        here = self._cache[:, :, block]
        here[:] = np.frombuffer(raw, self._cache.dtype).reshape(here.shape)

    def close(self) -> None:
        """Drops the cache; the weights go with the object."""
        self._cache = self._cache[:, :, :0]

    def _copy(self, copies: Sequence[BlockCopy]) -> None:
        for copy in copies:
            for block in (copy.source, copy.target):
                _check_range("block", block, self._capacity.num_blocks)
            self._cache[:, :, copy.target] = self._cache[:, :, copy.source]

    def _run(self, work: Work) -> WorkResult:
        try:
            self._check(work)
            return self._compute(work)
        except (PlanError, SampleError) as error:
            return WorkResult(work.request_id, work.choice, error=str(error), code=getattr(error, "code", None))

    def _compute(self, work: Work) -> WorkResult:
        tables = np.array(work.block_ids, np.intp).reshape(len(self._groups.windows), -1)
        places = self._groups.places
        scored: list[ScoredToken] = []
        hiddens: list[Array] = []
        for offset, token in enumerate(work.tokens):
            position = work.start + offset
            hidden = token_hidden(self._spec, self._weights, places, self._kv, self._cache, token, position, tables)
            hiddens.append(hidden)
            if offset < len(work.targets):
                logits = matvec(self._weights.output, hidden)
                scored.append(score(logits, work.targets[offset], work.num_target_alternatives))
        offsets = [work.sample_offset(number) for number in range(len(work.samples))]
        logits = {offset: matvec(self._weights.output, hiddens[offset]) for offset in set(offsets)}
        drawn = [draw(logits[offset], sample) for offset, sample in zip(offsets, work.samples, strict=True)]
        total = None if work.hidden_sum is None else added(work.hidden_sum, hiddens)
        return WorkResult(work.request_id, work.choice, tuple(drawn), tuple(scored), hidden_sum=total)

    def _check(self, work: Work) -> None:
        end = work.start + len(work.tokens)
        if not work.tokens:
            raise PlanError("a work without tokens")
        if work.start < 0 or end > self._capacity.max_model_len:
            raise PlanError(f"positions {work.start}..{end - 1} do not fit {self._capacity.max_model_len} positions")
        num_groups, size = len(self._groups.windows), self._capacity.block_size
        table_len, rest = divmod(len(work.block_ids), num_groups)
        if rest or table_len * size < end:
            raise PlanError(f"{num_groups} tables of {table_len} blocks of {size} do not hold {end} positions")
        if work.hidden_sum is not None:
            _check_range("the first token whose hidden state is added", work.hidden_sum.first, len(work.tokens))
        if len(work.targets) > len(work.tokens):
            raise PlanError(f"{len(work.targets)} targets for {len(work.tokens)} tokens")
        for group, window in enumerate(self._groups.windows):
            first = first_key(window, work.start) // size
            for logical, block in enumerate(work.block_ids[group * table_len : (group + 1) * table_len]):
                if block != NO_BLOCK or logical >= first:
                    _check_range("block", block, self._capacity.num_blocks)
        for token in (*work.tokens, *work.targets):
            _check_range("token", token, self._capacity.vocab_size)


def added(asked: HiddenSum, hiddens: Sequence[Array]) -> bytes:
    """The sum that is asked for, one hidden state after the other. Raises SampleError for one that is not finite."""
    size = hiddens[0].size
    total = np.frombuffer(asked.total, np.float64).copy() if asked.total else np.zeros(size, np.float64)
    if total.size != size:
        raise PlanError(f"a sum of {total.size} numbers, where a hidden state has {size}")
    for hidden in hiddens[asked.first :]:
        total += hidden
    if not np.isfinite(total).all():
        raise SampleError("not_finite", "the hidden states are not finite")
    return total.tobytes()


def _check_range(what: str, value: int, limit: int) -> None:
    if not 0 <= value < limit:
        raise PlanError(f"{what} {value} is outside 0..{limit - 1}")
