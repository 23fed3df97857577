"""How a token is chosen, written down once: this is the definition, and every other backend follows it.

Given one row of raw logits, float32, and a `Sample`:

1.  A NaN or an infinity among the raw logits is an error of this work (`not_finite`).
2.  Adjust, in float32, one rounding for each operation written here:
    a.  `logit_bias`: l + bias.
    b.  Tokens outside `allowed_token_ids` or `mask`, and `banned` ones, become -inf and stay so. If nothing is left,
        that is an error of this work (`nothing_allowed`).
    c.  Each distinct token of prompt + generated: l / repetition_penalty where l > 0, else l * repetition_penalty.
    d.  Each distinct token of generated, seen c times: (l - frequency_penalty * c) - presence_penalty.
    After c, and after d, the logit is clamped to the finite range of float32.
3.  Temperature 0: the highest adjusted logit, the lowest id among equals. Done.
4.  Weights: w = exp((l - max l) / temperature).
5.  `top_k`: keep the k tokens that come first in the order (higher l, then lower id).
6.  `top_p`: of these, keep the shortest run from the front of that order whose weights add up to top_p x the weights
    of all that step 5 kept, or more. Never empty.
7.  `min_p`: of these, keep those with w >= min_p. (The best token's w is 1, so it always stays.)
8.  `typical_p`: of these, with p = w / the sum of their weights: keep the shortest run from the front of the order
    (-log p nearer to its mean, the entropy, then lower id) whose weights add up to typical_p x that sum, or more. Never
    empty. (Locally typical sampling: Meister et al., TACL 2023. With x = (l - max l) / temperature, -log p and its mean
    differ from -x and its mean by one constant, so |x - sum(p x)| is the distance. It is compared as a float32.)
9.  u = philox, in [0, 1), keyed by (seed, choice, index). In the order of token ids, the first kept token at which
    the running sum of weights is above u x their whole sum. (Ids, not ranks: no sort is needed, and it is the same
    distribution.)

Logprobs are of the raw distribution, before step 2: l - max - log(sum(exp(l - max))). The rank of a token is one more
than the number of tokens with a higher raw logit. Alternatives are the first n in the order (higher l, then lower id).

Here, steps 4 to 9 and logprobs are computed in float64. An implementation in float32 gives the same token unless u, a
nucleus or typical boundary, or min_p lies within its stated error of a tie; tests measure that distance with `margins`.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from octavo.backends.reference.philox import uniform
from octavo.core.plan import Sample, ScoredToken
from octavo.core.sampling import SamplingParams

Logits = NDArray[np.float32]
_LARGEST = np.finfo(np.float32).max


class SampleError(ValueError):
    """No token can be drawn or scored; `code` is `not_finite` or `nothing_allowed`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def draw(logits: Logits, sample: Sample) -> ScoredToken:
    """One token from a row of raw logits [vocab], with its logprobs where `sample.params.logprobs` asks for them.

    Raises SampleError. Does not change `logits`.
    """
    check_finite(logits)
    adjusted = adjust(logits, sample)
    token = int(np.argmax(adjusted)) if sample.params.greedy else _draw_random(adjusted, sample)
    if sample.params.logprobs is None:
        return ScoredToken(token)
    return score(logits, token, sample.params.logprobs)


def score(logits: Logits, token: int, num_alternatives: int) -> ScoredToken:
    """`token`'s logprob and rank in the raw distribution, and the best `num_alternatives` tokens.

    Raises SampleError.
    """
    check_finite(logits)
    logprobs = log_softmax(logits)
    rank = 1 + int(np.count_nonzero(logits > logits[token]))
    best = descending(logits)[:num_alternatives] if num_alternatives else ()
    alternatives = tuple((int(other), float(logprobs[other])) for other in best)
    return ScoredToken(token, float(logprobs[token]), rank, alternatives)


def check_finite(logits: Logits) -> None:
    if not np.isfinite(logits).all():
        raise SampleError("not_finite", "the logits are not finite")


def log_softmax(logits: Logits) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - float(logits.max())
    return shifted - np.log(np.exp(shifted).sum())


def descending(logits: Logits) -> NDArray[np.intp]:
    """Token ids by (higher logit, then lower id)."""
    return np.argsort(-logits, kind="stable")


def adjust(logits: Logits, sample: Sample) -> Logits:
    """Step 2. A new array. Raises SampleError where no token is left."""
    adjusted = logits.copy()
    for token, bias in sample.params.logit_bias:
        adjusted[token] += np.float32(bias)
    _mask(adjusted, sample)
    if not np.isfinite(adjusted).any():
        raise SampleError(
            "nothing_allowed",
            "no token may be drawn: all are banned, outside allowed_token_ids, or against structured_outputs",
        )
    if sample.params.penalised:
        _penalise(adjusted, sample)
    return adjusted


def _mask(adjusted: Logits, sample: Sample) -> None:
    if sample.params.allowed_token_ids is not None:
        outside = np.ones(len(adjusted), bool)
        outside[list(sample.params.allowed_token_ids)] = False
        adjusted[outside] = -np.inf
    if sample.mask is not None:
        allowed = np.unpackbits(np.frombuffer(sample.mask, np.uint8), count=len(adjusted), bitorder="little")
        adjusted[allowed == 0] = -np.inf
    adjusted[list(sample.banned)] = -np.inf


def _penalise(adjusted: Logits, sample: Sample) -> None:
    generated = set(sample.generated)
    for token in generated | set(sample.prompt):
        logit = adjusted[token]
        if np.isfinite(logit):
            with np.errstate(over="ignore", divide="ignore"):
                logit = _repeated(logit, sample.params)
                if token in generated:
                    logit = _counted(logit, sample.generated.count(token), sample.params)
            adjusted[token] = np.clip(logit, -_LARGEST, _LARGEST)


def _repeated(logit: np.float32, params: SamplingParams) -> np.float32:
    penalty = np.float32(params.repetition_penalty)
    if penalty == 1:
        return logit
    return np.clip(logit / penalty if logit > 0 else logit * penalty, -_LARGEST, _LARGEST)


def _counted(logit: np.float32, count: int, params: SamplingParams) -> np.float32:
    lowered = logit - np.float32(params.frequency_penalty) * np.float32(count)
    return lowered - np.float32(params.presence_penalty)


def _draw_random(adjusted: Logits, sample: Sample) -> int:
    weights = scaled_weights(adjusted, sample.params.temperature)
    kept = kept_tokens(adjusted, weights, sample.params)
    sums = np.cumsum(np.where(kept, weights, 0.0))
    u = uniform(sample.seed, sample.choice, sample.index)
    return int(np.searchsorted(sums, u * sums[-1], side="right"))


def scaled_weights(adjusted: Logits, temperature: float) -> NDArray[np.float64]:
    """Step 4; -inf gives 0."""
    with np.errstate(under="ignore", over="ignore"):
        return np.exp((adjusted.astype(np.float64) - float(adjusted.max())) / max(temperature, _COLDEST))


_COLDEST = 2.0**-100
"""Colder than this is as this: only exact ties of the best logit are drawn, and nothing overflows."""


def kept_tokens(adjusted: Logits, weights: NDArray[np.float64], params: SamplingParams) -> NDArray[np.bool_]:
    """Steps 5 to 8: a mask over the vocabulary."""
    order = descending(adjusted)
    if params.top_k:
        order = order[: params.top_k]
    if params.top_p < 1:
        sums = np.cumsum(weights[order])
        order = order[: 1 + int(np.searchsorted(sums, params.top_p * sums[-1], side="left"))]
    kept = np.zeros(len(adjusted), bool)
    kept[order] = True
    kept &= (weights >= params.min_p) & (adjusted > -np.inf)
    if params.typical_p < 1:
        order, sums = typical_order(adjusted, weights, kept, params)
        kept[order[1 + int(np.searchsorted(sums, params.typical_p * sums[-1], side="left")) :]] = False
    return kept


def typical_order(
    adjusted: Logits, weights: NDArray[np.float64], kept: NDArray[np.bool_], params: SamplingParams
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Step 8: the ids of `kept` tokens, the most typical first, and the running sums of their weights."""
    ids = np.flatnonzero(kept)
    distances = typical_distances(adjusted, weights, ids, params)
    order = ids[np.argsort(distances, kind="stable")]
    return order, np.cumsum(weights[order])


def typical_distances(
    adjusted: Logits, weights: NDArray[np.float64], ids: NDArray[np.intp], params: SamplingParams
) -> NDArray[np.float32]:
    """How far the surprise of each of these tokens is from the expected one."""
    scaled = (adjusted[ids].astype(np.float64) - float(adjusted.max())) / max(params.temperature, _COLDEST)
    shares = weights[ids] / weights[ids].sum()
    mean = np.sum(np.where(shares > 0, shares * scaled, 0.0))
    with np.errstate(over="ignore"):
        return np.abs(scaled - mean).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Margins:
    """How far, relative to the whole weight, a draw is from falling otherwise."""

    draw: float
    """|u - the nearer end of the drawn token's share|."""
    nucleus: float
    """|top_p - the nearest running sum|; infinite where top_p is off."""
    min_p: float
    """The smallest |w / min_p - 1| of a w below 1, which exp gives exactly; infinite where min_p is off."""
    typical: float
    """As `nucleus`, of typical_p; or how near in distance the last kept token is to another one with another logit."""

    @property
    def least(self) -> float:
        return min(self.draw, self.nucleus, self.min_p, self.typical)


def margins(logits: Logits, sample: Sample) -> Margins:
    """For tests: the distances that decide whether float32 may draw another token. Only for temperature > 0."""
    adjusted, params = adjust(logits, sample), sample.params
    weights = scaled_weights(adjusted, params.temperature)
    sums = np.cumsum(np.where(kept_tokens(adjusted, weights, params), weights, 0.0))
    draw_margin = np.abs(sums / sums[-1] - uniform(sample.seed, sample.choice, sample.index)).min()
    nucleus = min_p = np.inf
    if params.top_p < 1:
        running = np.cumsum(weights[descending(adjusted)[: params.top_k or None]])
        nucleus = np.abs(running / running[-1] - params.top_p).min()
    if params.min_p:
        min_p = np.abs(weights[weights < 1] / params.min_p - 1).min(initial=np.inf)
    typical = _typical_margin(adjusted, weights, params) if params.typical_p < 1 else np.inf
    return Margins(float(draw_margin), float(nucleus), float(min_p), float(typical))


def _typical_margin(adjusted: Logits, weights: NDArray[np.float64], params: SamplingParams) -> float:
    kept = kept_tokens(adjusted, weights, replace(params, typical_p=1.0))
    ids = np.flatnonzero(kept)
    order, sums = typical_order(adjusted, weights, kept, params)
    distances = typical_distances(adjusted, weights, ids, params).astype(np.float64)
    last = order[int(np.searchsorted(sums, params.typical_p * sums[-1], side="left"))]
    others = distances[adjusted[ids] != adjusted[last]]
    at = distances[ids == last][0]
    nearest = np.abs(others - at).min(initial=np.inf) / (1 + at) if np.isfinite(at) else 0.0
    return float(min(np.abs(sums / sums[-1] - params.typical_p).min(), nearest))
