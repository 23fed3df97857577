"""The memory plan: how many KV blocks there are, how long a context may be. Pure, with its arithmetic in words."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from octavo.config.machine import readable_bytes
from octavo.core.groups import KvGroups
from octavo.core.tiers import TierLimits


class MemoryPlanError(ValueError):
    """What was asked for does not fit: the message has the arithmetic and the flags that change it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What is there and what was asked for. None: not asked for."""

    weight_bytes: int
    kv_bytes_per_token: int
    """In a block, which has the layers of one KV group."""
    available_bytes: int
    """What this process may take, for weights and KV together."""
    available_reason: str
    utilization: float
    """The share of it that may be taken."""
    model_len: int
    """Positions that the model was trained for."""
    max_model_len: int | None
    max_num_seqs: int
    block_size: int
    num_blocks: int | None
    kv_cache_memory_bytes: int | None
    windows: tuple[int | None, ...] = (None,)
    """Of each KV group; None: full attention."""
    longest_chunk: int = 1
    """Tokens of one request in one step, at most."""

    @property
    def block_bytes(self) -> int:
        return self.kv_bytes_per_token * self.block_size

    @property
    def budget_bytes(self) -> int:
        """What is left for the KV cache beside the weights."""
        return int(self.available_bytes * self.utilization) - self.weight_bytes

    @property
    def wanted_len(self) -> int:
        return self.model_len if self.max_model_len is None else self.max_model_len

    def blocks_for(self, tokens: int) -> int:
        """The most that a request of so many tokens holds: while its prompt is computed, where layers have windows."""
        return self._blocks_for(tokens, self.longest_chunk)

    def blocks_to_decode(self, tokens: int) -> int:
        """What it holds from then on."""
        return self._blocks_for(tokens, 1)

    def blocks_for_all(self, tokens: int) -> int:
        """For all slots: only one step's chunk of tokens is on its way at once."""
        decoding = self.blocks_to_decode(tokens)
        return decoding * self.max_num_seqs + self.blocks_for(tokens) - decoding

    def longest_in(self, num_blocks: int) -> int:
        """The longest context, up to the wanted one, of a request that has so many blocks for itself."""
        return bisect_right(range(1, self.wanted_len + 1), num_blocks, key=self.blocks_for)

    def _blocks_for(self, tokens: int, chunk: int) -> int:
        groups = KvGroups(self.block_size, self.windows, chunk)
        return sum(groups.most_held(window, tokens) for window in self.windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    num_blocks: int
    max_model_len: int
    report: tuple[str, ...]
    """Lines for people."""
    warnings: tuple[str, ...]
    """What they should not overlook in it."""


def plan_memory(demand: Demand) -> MemoryPlan:
    """Sizes the KV cache.

    By default it is what all slots need at full context, or what the memory share leaves if that is less. A context
    that does not fit is lowered, unless it was asked for. Raises MemoryPlanError.
    """
    if demand.wanted_len > demand.model_len:
        raise MemoryPlanError(
            f"max_model_len is {demand.wanted_len}, but the model has {demand.model_len} positions: "
            f"ask for at most {demand.model_len}"
        )
    num_blocks, why = _num_blocks(demand)
    max_model_len = demand.longest_in(num_blocks)
    if max_model_len < demand.wanted_len and (demand.max_model_len is not None or max_model_len < 1):
        raise MemoryPlanError(_too_small(demand, num_blocks))
    return MemoryPlan(
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        report=_report(demand, num_blocks, max_model_len, why),
        warnings=tuple(_warnings(demand, num_blocks, max_model_len)),
    )


def _num_blocks(demand: Demand) -> tuple[int, str]:
    if demand.num_blocks is not None:
        return demand.num_blocks, "num_blocks was given"
    if demand.kv_cache_memory_bytes is not None:
        return demand.kv_cache_memory_bytes // demand.block_bytes, "kv_cache_memory_bytes was given"
    needed = demand.blocks_for_all(demand.wanted_len)
    affordable = max(0, demand.budget_bytes) // demand.block_bytes
    if needed <= affordable:
        return needed, f"all {demand.max_num_seqs} slots at full context"
    return affordable, "what the memory share leaves"


def _too_small(demand: Demand, num_blocks: int) -> str:
    num_groups = len(demand.windows)
    if num_blocks < num_groups:
        each = f" for each of the {num_groups} KV groups" if num_groups > 1 else ""
        return (
            f"there is no room for a single KV block of {readable_bytes(demand.block_bytes)}{each}{_share(demand)}. "
            f"Raise kv_cache_memory_bytes or gpu_memory_utilization, or free memory"
        )
    wanted = demand.blocks_for(demand.wanted_len)
    return (
        f"a context of {demand.wanted_len} tokens needs {wanted} KV blocks of {demand.block_size} tokens "
        f"({readable_bytes(wanted * demand.block_bytes)}), but there are {num_blocks} "
        f"({readable_bytes(num_blocks * demand.block_bytes)}){_share(demand)}. "
        f"Lower max_model_len to {demand.longest_in(num_blocks)} or less, "
        f"or raise num_blocks, kv_cache_memory_bytes or gpu_memory_utilization"
    )


def _share(demand: Demand) -> str:
    """How the memory share came about, where it decided."""
    if demand.num_blocks is not None or demand.kv_cache_memory_bytes is not None:
        return ""
    share = readable_bytes(int(demand.available_bytes * demand.utilization))
    return (
        f"; {demand.utilization:.0%} of the available memory ({demand.available_reason}) is {share}, "
        f"the weights take {readable_bytes(demand.weight_bytes)}"
    )


def _report(demand: Demand, num_blocks: int, max_model_len: int, why: str) -> tuple[str, ...]:
    kv_bytes = num_blocks * demand.block_bytes
    concurrency = num_blocks / demand.blocks_to_decode(max_model_len)
    several = len(demand.windows) > 1
    each, tokens = (" and group", "") if several else ("", f"{num_blocks * demand.block_size:,} tokens = ")
    return (
        f"memory: {readable_bytes(demand.available_bytes)} available ({demand.available_reason}), "
        f"{demand.utilization:.0%} of it may be used",
        f"weights: {readable_bytes(demand.weight_bytes)}",
        f"KV cache: {demand.kv_bytes_per_token:,} bytes a token{each}; {num_blocks:,} blocks of {demand.block_size} = "
        f"{tokens}{readable_bytes(kv_bytes)} ({why})",
        f"context: {max_model_len:,} tokens; {concurrency:.1f} requests at full context fit at once",
    )


def _warnings(demand: Demand, num_blocks: int, max_model_len: int) -> Iterator[str]:
    if max_model_len < demand.wanted_len:
        lowered = f"the context is lowered from {demand.wanted_len:,} to {max_model_len:,} tokens"
        yield f"{lowered}, as with --max-model-len {max_model_len}: no more KV fits"
    if num_blocks * demand.block_bytes > max(0, demand.available_bytes - demand.weight_bytes):
        yield "the KV cache is larger than the memory that is free now: the system may end this process"


_MAX_PENDING_BYTES = 256 << 20
"""Snapshots in main memory that wait to be written to disk."""


@dataclass(frozen=True, slots=True)
class TierPlan:
    limits: TierLimits
    report: tuple[str, ...]


def plan_tier(offload_bytes: int, path: str | None, block_bytes: int, context_blocks: int, reuses: bool) -> TierPlan:
    """Sizes the tier below the KV cache. `context_blocks`: what one request at full context has; `reuses`: others may
    hit what one has computed. Raises MemoryPlanError where not even one block fits."""
    num_blocks = offload_bytes // block_bytes
    if num_blocks < 1:
        raise MemoryPlanError(
            f"kv_offload_bytes is {readable_bytes(offload_bytes)}, and one KV block takes {readable_bytes(block_bytes)}"
        )
    where = "main memory" if path is None else path
    line = f"KV offload: {num_blocks:,} blocks = {readable_bytes(num_blocks * block_bytes)} in {where}"
    if path is None:
        limits = TierLimits(name="memory", num_blocks=num_blocks, num_storing=num_blocks, num_staged=num_blocks)
        return TierPlan(limits, (line,))
    num_storing = min(num_blocks, max(8, _MAX_PENDING_BYTES // block_bytes))
    num_staged = min(num_blocks, max(8, context_blocks))
    buffers = readable_bytes((num_storing + num_staged) * block_bytes)
    limits = TierLimits(
        name="disk", num_blocks=num_blocks, num_storing=num_storing, num_staged=num_staged, persistent=reuses
    )
    return TierPlan(limits, (f"{line}; at most {buffers} of main memory while they are on their way",))
