"""The contract between policy and backends: a plan says what to compute, a result says what came out.

A plan is frozen, complete and JSON-able (tuples, ints, floats, strings, bytes): replay, the simulator and bug reports
are made of it. There is no prefill or decode in it: a first chunk, a later chunk, what a prefix hit left over and a
decode are all "n tokens for a request". Backends see plans, never requests.

What is made for each token is a NamedTuple: a frozen dataclass takes three times as long to make. What is made in every
decode has a function beside its class, which makes it in half the time of the class itself.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from octavo.core.sampling import SamplingParams
from octavo.core.types import BlockId, RequestId, TokenId

made: Any = tuple.__new__  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
"""`made(Name, fields)` is `Name(*fields)` for a NamedTuple, if these are all of its fields: nothing is checked."""


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy the KV of block `source` into block `target`, before any work of the step: all layers of their group."""

    source: BlockId
    target: BlockId


@dataclass(frozen=True, slots=True)
class BlockStore:
    """Keep what `block` holds before this step, a full block with these tokens, in the lower tier under `key`."""

    block: BlockId
    key: bytes
    parent: bytes | None
    """The key of the block before it; None for the first of a sequence."""
    tokens: tuple[TokenId, ...]


@dataclass(frozen=True, slots=True)
class BlockLoad:
    """Fill `block` with what the tier keeps under `key`. It was fetched: nothing has to be waited for."""

    key: bytes
    block: BlockId


@dataclass(frozen=True, slots=True)
class Transfers:
    """What a step asks of the lower tier, in the order in which it is to be done.

    releases   buffers of fetched blocks that nobody will load
    drops      blocks that the tier forgets
    fetches    blocks to read into buffers, in the background
    stores     snapshots, before anything of the step writes; they are written in the background
               ... the copies of the step ...
    loads      before any work
    """

    releases: tuple[bytes, ...] = ()
    drops: tuple[bytes, ...] = ()
    fetches: tuple[bytes, ...] = ()
    stores: tuple[BlockStore, ...] = ()
    loads: tuple[BlockLoad, ...] = ()


class Sample(NamedTuple):
    """Draw one token from the logits after a work's last token.

    Random numbers are keyed by (`seed`, `choice`, `index`) and nothing else, so neighbours, chunking and preemption
    cannot change a draw.
    """

    params: SamplingParams
    seed: int
    """The request's seed, resolved: never None. 0 <= seed < 2**64."""
    choice: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # nobody searches a sample
    """How many tokens this choice has generated before this one."""
    banned: tuple[TokenId, ...] = ()
    """Ids that may not be drawn now: the stop tokens, while `index < min_tokens`."""
    prompt: tuple[TokenId, ...] = ()
    """Only where `params.repetition_penalty` needs it; else empty."""
    generated: tuple[TokenId, ...] = ()
    """Only where a penalty needs it; else empty."""
    mask: bytes | None = None
    """Which ids may be drawn: a bit for each, the lowest of a byte first, in ceil(vocab_size / 8) bytes. None: all."""


def plain_sample(params: SamplingParams, seed: int, choice: int, index: int, banned: tuple[TokenId, ...]) -> Sample:
    """A Sample that asks for nothing else."""
    return made(Sample, (params, seed, choice, index, banned, (), (), None))


@dataclass(frozen=True, slots=True)
class HiddenSum:
    """Add the hidden states of a work's tokens to `total`: of tokens[first:], one after the other, in their order.

    A hidden state is what the logits after a token are made of: behind the last norm. Sums are in float64.
    """

    first: int
    total: bytes = b""
    """The sum so far: float64 of this machine, one for each number of a hidden state. Empty: nothing was added yet."""


class Work(NamedTuple):
    """Compute `tokens` at positions start .. start + len(tokens) - 1 of one choice of a request.

        position    0 ............ start ............ start + len(tokens)
        KV          |  in blocks    |  written by this |
        block_ids   cover all of it: ceil((start + len(tokens)) / block_size) ids or more

    The KV of position p lies in block `block_ids[p // block_size]`, slot `p % block_size`.
    Each token attends to all positions up to and including its own, or to as many of the last ones as its layer's
    window has.

    With several KV groups, `block_ids` are the tables of all groups, one after the other and equally long: of L ids
    each, group g has the ids from g * L on. NO_BLOCK stands where nothing of this work attends to any more.
    """

    request_id: RequestId
    choice: int
    start: int
    tokens: tuple[TokenId, ...]
    block_ids: tuple[BlockId, ...]
    """The same tuple object in each step in which it did not grow: a backend may cache by identity."""
    samples: tuple[Sample, ...] = ()
    """Drawn from the last token's logits: none in the middle of a prompt, one in a decode, n where a prompt ends."""
    targets: tuple[TokenId, ...] = ()
    """Prompt scoring: the logits after tokens[i] are asked for the logprob of targets[i]. Its length is len(tokens),
    or one less for the chunk that ends the prompt."""
    num_target_alternatives: int = 0
    num_drafted: int = 0
    """The last tokens that are guesses: then there is a sample for the token before them and one for each of them.

    Each is drawn from the logits after its own token, so it holds only where all guesses up to it are right.
    """
    hidden_sum: HiddenSum | None = None

    def sample_offset(self, number: int) -> int:
        """After which of `tokens` sample `number` is drawn."""
        return len(self.tokens) - 1 - self.num_drafted + (number if self.num_drafted else 0)


def decode(
    request_id: RequestId,
    choice: int,
    start: int,
    tokens: tuple[TokenId, ...],
    block_ids: tuple[BlockId, ...],
    samples: tuple[Sample, ...],
) -> Work:
    """A Work that asks for nothing else."""
    return made(Work, (request_id, choice, start, tokens, block_ids, samples, (), 0, 0, None))


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: the copies, one after the other, then all the work, as one batch.

    Works are independent of each other's results. A copy may overwrite what an earlier one read, never the other way.
    """

    step: int
    work: tuple[Work, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    transfers: Transfers | None = None
    """For whoever keeps a lower tier; a backend alone knows nothing of it."""

    @property
    def num_tokens(self) -> int:
        return sum([len(work.tokens) for work in self.work])


class ScoredToken(NamedTuple):
    """A token and, where asked for, its place in the raw distribution.

    `alternatives` are the most likely (token, logprob) pairs, best first, lower id first among equals.
    """

    token: TokenId
    logprob: float | None = None
    rank: int | None = None
    """1 for the most likely token: one more than the tokens with a higher logit."""
    alternatives: tuple[tuple[TokenId, float], ...] = ()


@lru_cache(1 << 14)
def bare(token: TokenId) -> tuple[ScoredToken]:
    """A token of which nothing else was asked. It is a value: who says the same word shares it."""
    return (ScoredToken(token),)


class WorkResult(NamedTuple):
    """What one `Work` gave: a token for each of its samples, a score for each of its targets, in their order; a sum."""

    request_id: RequestId
    choice: int
    sampled: tuple[ScoredToken, ...] = ()
    scored: tuple[ScoredToken, ...] = ()
    error: str | None = None
    """Set where this work alone failed (for example, its logits were not finite); then there is nothing else."""
    code: str | None = None
    """The error as a word: `not_finite`, `nothing_allowed` (to draw), or `bad_token`."""
    hidden_sum: bytes | None = None
    """The sum that `Work.hidden_sum` asked for, as its `total` has it."""


def drawn(request_id: RequestId, choice: int, sampled: tuple[ScoredToken, ...]) -> WorkResult:
    """A WorkResult with nothing else in it."""
    return made(WorkResult, (request_id, choice, sampled, (), None, None, None))


@dataclass(frozen=True, slots=True)
class StepResult:
    """The results of a plan, in the order of its work, and the seconds that each phase took."""

    step: int
    results: tuple[WorkResult, ...] = ()
    timings_s: dict[str, float] = field(default_factory=dict[str, float])


def check_result(plan: StepPlan, result: StepResult) -> None:
    """Raises ValueError unless `result` answers `plan`: work by work, with all that was asked for or an error."""
    if result.step != plan.step or len(result.results) != len(plan.work):
        counts = f"{len(result.results)} results, for {len(plan.work)} works"
        raise ValueError(f"step {result.step} is no answer to step {plan.step}: {counts}")
    for work, outcome in zip(plan.work, result.results, strict=True):
        if outcome.request_id != work.request_id or outcome.choice != work.choice:
            raise ValueError(f"a result for {outcome.request_id} where one for {work.request_id} is due")
        complete = (
            len(outcome.sampled) == len(work.samples)
            and len(outcome.scored) == len(work.targets)
            and (outcome.hidden_sum is None) == (work.hidden_sum is None)
        )
        if not complete and outcome.error is None:
            raise ValueError(f"the result for {work.request_id} lacks samples, scores or a sum")
