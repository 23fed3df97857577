"""Facts: what happened, once, as values. Streams, metrics, traces, the live page and logs read these, nothing else.

What is told for each token or block is a NamedTuple, as in plan.py. Every event has its fields in `__match_args__`.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.core.misses import Miss
from octavo.core.plan import ScoredToken, made
from octavo.core.types import FinishReason, RequestId
from octavo.core.waits import Waited


@dataclass(frozen=True, slots=True)
class Queued:
    request_id: RequestId
    time_s: float
    prompt_len: int
    num_choices: int = 1
    tenant: str = ""
    max_tokens: int | None = None
    """The longest answer that was asked for; None: as far as the context goes, or an embedding."""
    arrival_s: float | None = None
    """When whoever submitted it had it. None: now."""

    @property
    def came_s(self) -> float:
        """When it came, to whoever had it first: what latencies count from."""
        return self.time_s if self.arrival_s is None else self.arrival_s


@dataclass(frozen=True, slots=True)
class Refused:
    """The request was not queued: NEVER, because this engine cannot serve it; or not now, because too many wait."""

    request_id: RequestId
    time_s: float
    code: str
    """`context_length_exceeded`, `pool_too_small`, `too_many_choices`, `duplicate_id`, `empty_prompt` or
    `token_out_of_range`; not now: `queue_full` or `queue_tokens_full`."""
    message: str
    """What was asked, what there is, and the flag that changes it."""
    retry_after_s: int | None = None
    """Not now: after so many seconds there should be room. None where it is for good."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A waiting choice got its first work (again, after a preemption)."""

    request_id: RequestId
    choice: int
    time_s: float
    cached_tokens: int
    """Prompt tokens whose KV was found in the prefix cache."""
    resumed: bool = False
    """True after a preemption: `cached_tokens` then counts generated tokens too."""
    miss: Miss | None = None
    """Why more than the last token has to be computed. None after a preemption, and where no more has to be."""
    loaded_tokens: int = 0
    """Of `cached_tokens`: those that come from the lower tier."""
    waited: tuple[Waited, ...] = ()
    """For what it waited, and how long, since it was queued or preempted."""


@dataclass(frozen=True, slots=True)
class Computed:
    """A chunk of a prompt, or of what a preempted choice had, is computed. Not told of the one token of a decode."""

    request_id: RequestId
    choice: int
    time_s: float
    num_tokens: int
    num_left: int
    """Known tokens that are still to be computed."""


@dataclass(frozen=True, slots=True)
class PromptScored:
    """Logprobs of prompt tokens, in order; several of these where the prompt came in chunks."""

    request_id: RequestId
    time_s: float
    scored: tuple[ScoredToken, ...]


class Generated(NamedTuple):
    """Tokens of one choice in one step, in order."""

    request_id: RequestId
    choice: int
    time_s: float
    tokens: tuple[ScoredToken, ...]


def generated(request_id: RequestId, choice: int, time_s: float, tokens: tuple[ScoredToken, ...]) -> Generated:
    """The same as Generated, made as what plan.py makes in every decode."""
    return made(Generated, (request_id, choice, time_s, tokens))


@dataclass(frozen=True, slots=True)
class Embedded:
    """The prompt of an embedding is computed. Its `Finished` follows."""

    request_id: RequestId
    time_s: float
    total: bytes
    """The sum of the hidden states that it is the mean of: see `plan.HiddenSum`."""
    num_tokens: int
    """So many they are."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """A choice guessed ahead, and so many guesses were right. Its tokens are those that come without guesses."""

    request_id: RequestId
    choice: int
    time_s: float
    num_drafted: int
    num_accepted: int


@dataclass(frozen=True, slots=True)
class Preempted:
    request_id: RequestId
    choice: int
    time_s: float
    tokens_lost: int
    """Tokens whose KV must be computed again, before any prefix hit; none of those that were swapped."""
    reason: str
    """Who needed what, and, where there is a lower tier, the arithmetic of swap or recompute."""
    tokens_swapped: int = 0
    """Tokens whose KV is kept: in the pool, or in the tier once others need the blocks."""
    cause: str = "blocks"
    """`blocks`: one ahead needed them; `priority`: one of a lower rank wanted in; `beams`: others of its search did."""
    times: int = 1
    """How often this choice was preempted, this time included."""


@dataclass(frozen=True, slots=True)
class Stalled:
    """The progress law is broken: so many plans in a row advance nothing, though something waits."""

    time_s: float
    num_plans: int
    waiting: dict[str, int]
    """What those who wait lack -> how many of them."""
    message: str


@dataclass(frozen=True, slots=True)
class Finished:
    request_id: RequestId
    choice: int
    time_s: float
    reason: FinishReason
    stop_token: int | None = None
    """The token that ended it, where one did: an end-of-sequence token or one of `stop_token_ids`."""
    message: str | None = None
    """Why, where the reason is ERROR."""
    code: str | None = None
    """Why, in a word. `nothing_allowed` and `structured_outputs` are the request's own doing."""


class BlockStored(NamedTuple):
    """A full block became visible to other requests under this key."""

    time_s: float
    key: bytes
    parent: bytes | None
    num_tokens: int


class BlockEvicted(NamedTuple):
    time_s: float
    key: bytes


@dataclass(frozen=True, slots=True)
class PrefixPinned:
    """Blocks of a tenant are not evicted any more."""

    time_s: float
    pin_id: str
    tenant: str
    num_blocks: int


@dataclass(frozen=True, slots=True)
class PrefixUnpinned:
    """A pin is over: what it alone held may be evicted again."""

    time_s: float
    pin_id: str
    tenant: str
    expired: bool = False
    """Its time was up; else somebody removed it."""


@dataclass(frozen=True, slots=True)
class Audited:
    """The laws of core/audit.py were checked while nothing ran."""

    time_s: float
    violations: tuple[str, ...]
    """What is broken, in words; empty where all is well."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """The state after a commit: the gauges. The block counts add up to the pool."""

    time_s: float
    step: int
    num_running: int
    num_waiting: int
    num_tokens: int
    """Computed in this step."""
    blocks_blank: int
    blocks_cached: int
    blocks_leased: int
    timings_s: dict[str, float]
    num_held: int = 0
    """Those of `num_waiting` that lack something from outside: their structured output is being compiled."""
    blocks_pinned: int = 0
    blocks_reserved: int = 0
    """Of the blank and cached ones: those that are kept for running choices."""
    waiting: dict[str, int] = field(default_factory=dict[str, int])
    """What those who wait lack -> how many of them. They add up to `num_waiting`."""


@dataclass(frozen=True, slots=True)
class Steered:
    """Latency objectives were looked at: what was measured, and how far the engine is throttled from now on."""

    time_s: float
    reason: str
    """`hold` where nothing changes, else a `Decision.reason` of control/slo.py."""
    message: str
    """The arithmetic."""
    num_tokens: int
    """The most of a step with decodes, beside which a block of a prompt always has room."""
    num_seqs: int
    """The most choices that run."""
    itl_s: float | None
    """The p99 of what was measured under this throttle so far; None: nothing was."""
    ttft_s: float | None
    itl_aim_s: float | None
    """The objective; None: there is none."""
    ttft_aim_s: float | None


@dataclass(frozen=True, slots=True)
class EngineReady:
    """An engine takes requests: the first one, or another in the place of one that was lost. Its client tells it."""

    time_s: float


@dataclass(frozen=True, slots=True)
class EngineLost:
    """The engine is gone, with all that it ran, queued and cached. Told by whoever noticed: it cannot say so itself."""

    time_s: float
    message: str


@dataclass(frozen=True, slots=True)
class Tiered:
    """The state of the lower tier, told whenever it changed: gauges in blocks, and counts of blocks since the start."""

    time_s: float
    tier: str
    """`memory` or `disk`."""
    block_bytes: int
    num_blocks: int
    """What it may hold. 0 after it was closed because it did not answer."""
    blocks_storing: int
    """On their way there."""
    blocks_stored: int
    blocks_staged: int
    """Of all of these, those that are in buffers or being read into them."""
    stores: int
    store_failures: int
    skipped: int
    """Evicted blocks that were lost, because too many were on their way."""
    loads: int
    load_failures: int
    """Missing, truncated or corrupt: computed again."""
    evictions: int
    closed: str | None
    """Why nothing is stored any more."""


Event = (
    Queued
    | Refused
    | Admitted
    | Computed
    | PromptScored
    | Generated
    | Embedded
    | Drafted
    | Preempted
    | Stalled
    | Finished
    | BlockStored
    | BlockEvicted
    | PrefixPinned
    | PrefixUnpinned
    | Tiered
    | Audited
    | Stepped
    | Steered
    | EngineReady
    | EngineLost
)
