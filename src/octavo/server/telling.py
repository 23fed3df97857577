"""Telling: events as JSON, in a form that stays: what follows them over HTTP relies on these names.

Token ids are not told, only how many there were: whoever watches a server need not read what it says.
"""

from collections.abc import Callable, Collection, Mapping
from functools import reduce
from operator import or_
from typing import Any

import msgspec

from octavo.core import events
from octavo.core.events import Event
from octavo.core.misses import Miss
from octavo.core.types import Load
from octavo.core.waits import Waited

WAITS = {
    "step": "for the next step to be planned",
    "behind": "for those before it, in the order of --scheduling-policy",
    "tokens": "for tokens of a step (--max-num-batched-tokens)",
    "seqs": "for a slot (--max-num-seqs)",
    "blocks": "for KV blocks (--num-blocks, --kv-cache-memory-bytes)",
    "partial_prefills": "for another prompt to be computed (--max-num-partial-prefills)",
    "block_in_work": "for another request to compute its next block, which it then hits",
    "loading": "for its blocks to come from the lower tier",
    "turn": "since it was preempted in that very step",
    "preemption": "while running requests were preempted",
    "guide": "for its structured output to be compiled",
}
"""What a request may wait for, in words. Metrics tell each of them, also where nobody does."""


class MissTold(msgspec.Struct, frozen=True):
    """Why tokens of a prompt were not found in the prefix cache."""

    reason: str
    at: int
    evicted_s: float | None


class WaitTold(msgspec.Struct, frozen=True):
    """For how long it waited for what; how much it needed of that, and how much there was, where that is a number."""

    reason: str
    seconds: float
    need: int
    have: int


class Told(msgspec.Struct, tag_field="kind", frozen=True, kw_only=True):
    """What all events have: when it happened, in seconds since 1970, and its number: a gap is what was not told."""

    time: float
    seq: int


class Hello(Told, tag="hello", frozen=True, kw_only=True):
    """The first one: from here on events are told."""

    version: str
    kinds: list[str]


class Dropped(Told, tag="dropped", frozen=True, kw_only=True):
    """So many events of these kinds were lost before the next one, because they were not read in time."""

    count: int


class QueuedTold(Told, tag="queued", frozen=True, kw_only=True):
    """A request came to the engine."""

    request_id: str
    tenant: str
    prompt_tokens: int
    choices: int
    max_tokens: int | None


class RefusedTold(Told, tag="refused", frozen=True, kw_only=True):
    """It was not queued."""

    request_id: str
    code: str
    message: str
    retry_after: int | None


class AdmittedTold(Told, tag="admitted", frozen=True, kw_only=True):
    """A choice runs; `resumed`: again, after a preemption. `loaded_tokens`: cached ones from the lower tier."""

    request_id: str
    choice: int
    cached_tokens: int
    loaded_tokens: int
    resumed: bool
    miss: MissTold | None
    waited: list[WaitTold]


class ComputedTold(Told, tag="computed", frozen=True, kw_only=True):
    """A chunk of a prompt is computed; `left`: tokens that are not yet."""

    request_id: str
    choice: int
    tokens: int
    left: int


class PromptScoredTold(Told, tag="prompt_scored", frozen=True, kw_only=True):
    """Logprobs of prompt tokens are known."""

    request_id: str
    tokens: int


class EmbeddedTold(Told, tag="embedded", frozen=True, kw_only=True):
    """The prompt of an embedding is computed."""

    request_id: str
    tokens: int


class GeneratedTold(Told, tag="generated", frozen=True, kw_only=True):
    """A choice has more tokens."""

    request_id: str
    choice: int
    tokens: int


class DraftedTold(Told, tag="drafted", frozen=True, kw_only=True):
    """A choice guessed ahead; `accepted` of its guesses were right."""

    request_id: str
    choice: int
    drafted: int
    accepted: int


class PreemptedTold(Told, tag="preempted", frozen=True, kw_only=True):
    """A running choice lost its blocks, and waits again."""

    request_id: str
    choice: int
    cause: str
    reason: str
    tokens_lost: int
    tokens_kept: int
    times: int


class FinishedTold(Told, tag="finished", frozen=True, kw_only=True):
    """A choice is over. What a stop string ended is an `abort` of the engine, which knows no text."""

    request_id: str
    choice: int
    reason: str
    code: str | None
    message: str | None


class StalledTold(Told, tag="stalled", frozen=True, kw_only=True):
    """So many plans in a row advanced nothing, though something waits."""

    plans: int
    waiting: dict[str, int]
    message: str


class SteeredTold(Told, tag="steered", frozen=True, kw_only=True):
    """Latency objectives were looked at: what a step may have from now on, and why. Times are in seconds."""

    reason: str
    message: str
    tokens: int
    seqs: int
    itl_p99: float | None
    itl_objective: float | None
    ttft_p99: float | None
    ttft_objective: float | None


class BlockStoredTold(Told, tag="block_stored", frozen=True, kw_only=True):
    """A full block can be hit, under this key."""

    key: str
    parent: str | None
    tokens: int


class BlockEvictedTold(Told, tag="block_evicted", frozen=True, kw_only=True):
    """It no longer can."""

    key: str


class PrefixPinnedTold(Told, tag="prefix_pinned", frozen=True, kw_only=True):
    """A prefix is kept."""

    pin_id: str
    tenant: str
    blocks: int


class PrefixUnpinnedTold(Told, tag="prefix_unpinned", frozen=True, kw_only=True):
    """A pin is over; `expired`: its time was up."""

    pin_id: str
    tenant: str
    expired: bool


class TieredTold(Told, tag="tiered", frozen=True, kw_only=True):
    """The tier below the KV cache changed. In blocks; from `stores` on, counts since the start."""

    tier: str
    block_bytes: int
    blocks: int
    storing: int
    stored: int
    staged: int
    stores: int
    store_failures: int
    skipped: int
    loads: int
    load_failures: int
    evictions: int
    closed: str | None


class AuditedTold(Told, tag="audited", frozen=True, kw_only=True):
    """The laws of the allocator were checked while nothing ran; none should be broken."""

    violations: list[str]


class BlocksTold(msgspec.Struct, frozen=True):
    """Blocks by state. All but `reserved` add up to the pool; those are some of the blank and cached ones."""

    blank: int
    cached: int
    leased: int
    pinned: int
    reserved: int


class SteppedTold(Told, tag="stepped", frozen=True, kw_only=True):
    """A step is over; or, with 0 tokens, something changed while none ran."""

    step: int
    tokens: int
    running: int
    waiting: int
    held: int
    lacks: dict[str, int]
    blocks: BlocksTold
    timings: dict[str, float]


class EngineReadyTold(Told, tag="engine_ready", frozen=True, kw_only=True):
    """An engine takes requests: the first one, or another in the place of one that was lost."""


class EngineLostTold(Told, tag="engine_lost", frozen=True, kw_only=True):
    """The engine is gone, with all that it ran, queued and cached."""

    message: str


def miss_told(miss: Miss | None) -> MissTold | None:
    return None if miss is None else MissTold(miss.reason, miss.at, miss.evicted_s)


def waits_told(waited: Collection[Waited]) -> list[WaitTold]:
    return [WaitTold(each.reason, round(each.seconds, 6), each.need, each.have) for each in waited]


def blocks_told(state: events.Stepped | Load) -> BlocksTold:
    counts = (state.blocks_blank, state.blocks_cached, state.blocks_leased, state.blocks_pinned)
    return BlocksTold(*counts, state.blocks_reserved)


def _fields(event: Event) -> dict[str, Any]:
    """The event's own fields under the names that are told; those that are not told are left out below."""
    return {_NAMES.get(name, name): getattr(event, name) for name in event.__match_args__}


_NAMES = {
    "prompt_len": "prompt_tokens",
    "num_choices": "choices",
    "retry_after_s": "retry_after",
    "num_tokens": "tokens",
    "num_left": "left",
    "num_drafted": "drafted",
    "num_accepted": "accepted",
    "tokens_swapped": "tokens_kept",
    "num_plans": "plans",
    "num_blocks": "blocks",
    "blocks_storing": "storing",
    "blocks_stored": "stored",
    "blocks_staged": "staged",
    "num_running": "running",
    "num_waiting": "waiting",
    "num_held": "held",
    "num_seqs": "seqs",
    "itl_s": "itl_p99",
    "itl_aim_s": "itl_objective",
    "ttft_s": "ttft_p99",
    "ttft_aim_s": "ttft_objective",
}


def _admitted(event: events.Admitted) -> dict[str, Any]:
    return {**_fields(event), "miss": miss_told(event.miss), "waited": waits_told(event.waited)}


def _counted(event: events.Generated) -> dict[str, Any]:
    return {**_fields(event), "tokens": len(event.tokens)}


def _scored(event: events.PromptScored) -> dict[str, Any]:
    return {**_fields(event), "tokens": len(event.scored)}


def _stored(event: events.BlockStored) -> dict[str, Any]:
    parent = None if event.parent is None else event.parent.hex()
    return {"key": event.key.hex(), "parent": parent, "tokens": event.num_tokens}


def _evicted(event: events.BlockEvicted) -> dict[str, Any]:
    return {"key": event.key.hex()}


def _stepped(event: events.Stepped) -> dict[str, Any]:
    return {
        "step": event.step,
        "tokens": event.num_tokens,
        "running": event.num_running,
        "waiting": event.num_waiting,
        "held": event.num_held,
        "lacks": event.waiting,
        "blocks": blocks_told(event),
        "timings": event.timings_s,
    }


_TELLERS: Mapping[type, tuple[type[Told], Callable[[Any], dict[str, Any]]]] = {
    events.Queued: (QueuedTold, _fields),
    events.Refused: (RefusedTold, _fields),
    events.Admitted: (AdmittedTold, _admitted),
    events.Computed: (ComputedTold, _fields),
    events.PromptScored: (PromptScoredTold, _scored),
    events.Embedded: (EmbeddedTold, _fields),
    events.Generated: (GeneratedTold, _counted),
    events.Drafted: (DraftedTold, _fields),
    events.Preempted: (PreemptedTold, _fields),
    events.Finished: (FinishedTold, _fields),
    events.Stalled: (StalledTold, _fields),
    events.Steered: (SteeredTold, _fields),
    events.BlockStored: (BlockStoredTold, _stored),
    events.BlockEvicted: (BlockEvictedTold, _evicted),
    events.PrefixPinned: (PrefixPinnedTold, _fields),
    events.PrefixUnpinned: (PrefixUnpinnedTold, _fields),
    events.Tiered: (TieredTold, _fields),
    events.Audited: (AuditedTold, _fields),
    events.Stepped: (SteppedTold, _stepped),
    events.EngineReady: (EngineReadyTold, _fields),
    events.EngineLost: (EngineLostTold, _fields),
}
KINDS: Mapping[str, type] = {str(told.__struct_config__.tag): kind for kind, (told, _) in _TELLERS.items()}
"""What may be followed: the name of a kind, and the events that have it."""
AnyTold: Any = reduce(or_, (told for told, _ in _TELLERS.values()), Hello | Dropped)
"""What comes over a stream of events: one of these."""


def tell(event: Event, seq: int, epoch_s: float) -> Told:
    """The event as it is told. `epoch_s`: the engine's clock is that much behind the time since 1970."""
    kind, teller = _TELLERS[type(event)]
    told = teller(event)
    return kind(
        time=event.time_s + epoch_s,
        seq=seq,
        **{name: told[name] for name in kind.__struct_fields__ if name not in ("time", "seq")},
    )
