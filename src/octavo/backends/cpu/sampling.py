"""Samples and targets of a plan as flat arrays for one native call, and its answers as WorkResults.

The native side is native/include/octavo/sample.h; what is computed is written in backends/reference/sampling.py.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.core.plan import Sample, ScoredToken, StepPlan, WorkResult, bare, drawn
from octavo.core.sampling import SamplingParams

SCORED = np.dtype([("token", "<i4"), ("rank", "<i4"), ("logprob", "<f4"), ("status", "<i4")])
ALTERNATIVE = np.dtype([("token", "<i4"), ("logprob", "<f4")])

# SampleJob in three parts: what a SamplingParams decides, what a draw adds, and where its ids, values and mask are.
_PARAMS = struct.Struct("<4d3f4i")
_DRAW = struct.Struct("<iQIIi")
_PLACES = struct.Struct("<iiiqiiq")
JOB_BYTES = _PARAMS.size + _DRAW.size + _PLACES.size

_DRAWN = -1
_NO_LOGPROBS = -1
_ALL_ALLOWED = -1
_NO_MASK = -1
_NO_PLACES = _PLACES.pack(0, 0, 0, 0, 0, 0, _NO_MASK)
_MAX_CACHED = 1024

STATUSES = {
    1: ("not_finite", "the logits are not finite"),
    2: (
        "nothing_allowed",
        "no token may be drawn: all are banned, outside allowed_token_ids, or against structured_outputs",
    ),
    3: ("bad_token", "a token id is outside the vocabulary"),
}
"""SampleStatus -> what WorkResult.code and .error say."""

_NO_IDS = np.empty(0, np.int32)
_NO_VALUES = np.empty(0, np.float32)
_NO_MASKS = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class PackedSamples:
    """One step's jobs in the order of the plan: for each work its targets, then its samples."""

    rows: NDArray[np.int32]
    """Tokens of the step, by their place in it, whose logits are needed; ascending. A job's `row` is an index here."""
    jobs: NDArray[np.uint8]
    ids: NDArray[np.int32]
    values: NDArray[np.float32]
    masks: NDArray[np.uint8]
    scored: NDArray[Any]
    """[jobs] of SCORED, written by the native call."""
    alternatives: NDArray[Any]
    """Of ALTERNATIVE, written by the native call."""
    logprobs: tuple[int, ...]
    """For each job how many alternatives it has; -1: not even a logprob."""

    def arrays(
        self,
    ) -> tuple[
        NDArray[np.uint8],
        NDArray[np.int32],
        NDArray[np.float32],
        NDArray[np.uint8],
        NDArray[np.uint8],
        NDArray[np.uint8],
    ]:
        """jobs, ids, values, masks, scored, alternatives: as the native call takes them."""
        written = self.scored.view(np.uint8), self.alternatives.view(np.uint8)
        return self.jobs, self.ids, self.values, self.masks, *written


@dataclass(frozen=True, slots=True)
class _Fixed:
    """What a SamplingParams decides. Holds the object itself, so that its identity stays its own."""

    params: SamplingParams
    packed: bytes
    ids: NDArray[np.int32]
    """Bias ids, then allowed ids."""
    values: NDArray[np.float32]
    logprobs: int
    plain: bool
    """A sample of these has no ids but those that are banned, no values and no alternatives."""


class SamplePacker:
    """Packs plans; remembers what does not change from step to step by the identity of params and prompts."""

    def __init__(self) -> None:
        self._fixed: dict[int, _Fixed] = {}
        self._prompts: dict[int, tuple[tuple[int, ...], NDArray[np.int32]]] = {}

    def pack(self, plan: StepPlan) -> PackedSamples:
        step = _Step()
        first_token = 0
        for work in plan.work:
            for offset, target in enumerate(work.targets):
                step.add_target(first_token + offset, target, work.num_target_alternatives)
            next_token, num_drafted = first_token + len(work.tokens), work.num_drafted
            token, stride = next_token - 1 - num_drafted, 1 if num_drafted else 0
            for sample in work.samples:
                fixed = self._fixed.get(id(sample.params)) or self._remember(sample.params)
                if fixed.plain and not sample.banned and sample.mask is None:
                    step.add_plain(token, sample, fixed)
                else:
                    step.add_sample(token, sample, fixed, self._ids_of(sample, fixed))
                token += stride
            first_token = next_token
        return step.packed()

    def _remember(self, params: SamplingParams) -> _Fixed:
        if len(self._fixed) >= _MAX_CACHED:
            self._fixed.clear()
        fixed = self._fixed[id(params)] = _fix(params)
        return fixed

    def _ids_of(self, sample: Sample, fixed: _Fixed) -> Sequence[NDArray[np.int32]]:
        """The arrays behind `first_id`, in their order; empty ones may be left out."""
        if not (sample.banned or sample.prompt or sample.generated):
            return (fixed.ids,) if len(fixed.ids) else ()
        arrays = (fixed.ids, _ids(sample.banned), self._prompt(sample.prompt), _ids(sample.generated))
        return [array for array in arrays if len(array)]

    def _prompt(self, prompt: tuple[int, ...]) -> NDArray[np.int32]:
        known = self._prompts.get(id(prompt))
        if known is None:
            if len(self._prompts) >= _MAX_CACHED:
                self._prompts.clear()
            known = self._prompts[id(prompt)] = (prompt, _ids(prompt))
        return known[1]


class _Step:
    """The arrays of one step while they grow."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._jobs: list[bytes] = []
        self._ids: list[NDArray[np.int32]] = []
        self._values: list[NDArray[np.float32]] = []
        self._logprobs: list[int] = []
        self._masks: list[bytes] = []
        self._num_ids = self._num_values = self._num_alternatives = self._num_mask_bytes = 0

    def add_target(self, token: int, target: int, num_alternatives: int) -> None:
        row = self._row(token)
        places = _PLACES.pack(0, 0, 0, 0, 0, self._num_alternatives, _NO_MASK)
        self._jobs.append(_SCORE_PARAMS[num_alternatives] + _DRAW.pack(target, 0, 0, 0, row) + places)
        self._logprobs.append(num_alternatives)
        self._num_alternatives += num_alternatives

    def add_plain(self, token: int, sample: Sample, fixed: _Fixed) -> None:
        draw = _DRAW.pack(_DRAWN, sample.seed, sample.choice, sample.index, self._row(token))
        self._jobs.append(fixed.packed + draw + _NO_PLACES)
        self._logprobs.append(fixed.logprobs)

    def add_sample(self, token: int, sample: Sample, fixed: _Fixed, ids: Sequence[NDArray[np.int32]]) -> None:
        counts = len(sample.banned), len(sample.prompt), len(sample.generated)
        mask = _NO_MASK if sample.mask is None else self._place(sample.mask)
        places = _PLACES.pack(*counts, self._num_ids, self._num_values, self._num_alternatives, mask)
        draw = _DRAW.pack(_DRAWN, sample.seed, sample.choice, sample.index, self._row(token))
        self._jobs.append(fixed.packed + draw + places)
        self._logprobs.append(fixed.logprobs)
        if ids:
            self._ids += ids
            self._num_ids += sum(map(len, ids))
            self._values.append(fixed.values)
            self._num_values += len(fixed.values)
        if fixed.logprobs > 0:
            self._num_alternatives += fixed.logprobs

    def _place(self, mask: bytes) -> int:
        place = self._num_mask_bytes
        self._masks.append(mask)
        self._num_mask_bytes += len(mask)
        return place

    def _row(self, token: int) -> int:
        if not self._rows or self._rows[-1] != token:
            self._rows.append(token)
        return len(self._rows) - 1

    def packed(self) -> PackedSamples:
        return PackedSamples(
            np.array(self._rows, np.int32),
            np.frombuffer(b"".join(self._jobs), np.uint8),
            np.concatenate(self._ids) if self._ids else _NO_IDS,
            np.concatenate(self._values) if self._values else _NO_VALUES,
            np.frombuffer(b"".join(self._masks), np.uint8) if self._masks else _NO_MASKS,
            np.empty(len(self._logprobs), SCORED),
            np.empty(self._num_alternatives, ALTERNATIVE),
            tuple(self._logprobs),
        )


class _ScoreParams(dict[int, bytes]):
    """num_alternatives -> the first half of a job that scores a target."""

    def __missing__(self, num_alternatives: int) -> bytes:
        packed = self[num_alternatives] = _PARAMS.pack(0, 1, 1, 0, 0, 0, 1, 0, num_alternatives, 0, _ALL_ALLOWED)
        return packed


_SCORE_PARAMS = _ScoreParams()


def _fix(params: SamplingParams) -> _Fixed:
    bias_ids = tuple(token for token, _ in params.logit_bias)
    allowed = params.allowed_token_ids
    logprobs = _NO_LOGPROBS if params.logprobs is None else params.logprobs
    packed = _PARAMS.pack(
        params.temperature,
        params.top_p,
        params.typical_p,
        params.min_p,
        params.presence_penalty,
        params.frequency_penalty,
        params.repetition_penalty,
        min(params.top_k, 2**31 - 1),
        logprobs,
        len(bias_ids),
        _ALL_ALLOWED if allowed is None else len(allowed),
    )
    values = np.array([bias for _, bias in params.logit_bias], np.float32)
    plain = not (params.penalised or bias_ids or allowed) and logprobs <= 0
    return _Fixed(params, packed, _ids((*bias_ids, *(allowed or ()))), values, logprobs, plain)


def _ids(tokens: Iterable[int]) -> NDArray[np.int32]:
    return np.array(tokens, np.int32)


def unpack(plan: StepPlan, packed: PackedSamples) -> tuple[WorkResult, ...]:
    """The results of `plan`'s works, once the native call has filled `packed`."""
    tokens = _scored_tokens(packed)
    statuses = packed.scored["status"]
    failed = bool(statuses.any())
    results: list[WorkResult] = []
    first = 0
    for work in plan.work:
        middle = first + len(work.targets)
        end = middle + len(work.samples)
        fault = _first_fault(statuses[first:end]) if failed else None
        if fault is not None:
            result = WorkResult(work.request_id, work.choice, error=fault[1], code=fault[0])
        elif middle > first:
            result = WorkResult(work.request_id, work.choice, tuple(tokens[middle:end]), tuple(tokens[first:middle]))
        else:
            result = drawn(work.request_id, work.choice, tuple(tokens[first:end]))
        results.append(result)
        first = end
    return tuple(results)


def _first_fault(statuses: NDArray[np.int32]) -> tuple[str, str] | None:
    bad = np.flatnonzero(statuses)
    return STATUSES[int(statuses[bad[0]])] if len(bad) else None


def _scored_tokens(packed: PackedSamples) -> list[ScoredToken]:
    tokens = packed.scored["token"].tolist()
    if max(packed.logprobs, default=_NO_LOGPROBS) == _NO_LOGPROBS:
        return [bare(token)[0] for token in tokens]
    alternatives = packed.alternatives.tolist()
    scored: list[ScoredToken] = []
    first = 0
    for token, rank, logprob, count in zip(
        tokens, packed.scored["rank"].tolist(), packed.scored["logprob"].tolist(), packed.logprobs, strict=True
    ):
        if count < 0:
            scored.append(ScoredToken(token))
            continue
        others = tuple(pair for pair in alternatives[first : first + count] if pair[0] >= 0)
        scored.append(ScoredToken(token, logprob, rank, others))
        first += count
    return scored
