"""The words that every part shares: ids, why a request ended, and the limits that policy works within."""

from dataclasses import dataclass
from enum import StrEnum

RequestId = str
"""Names one submission for its whole life; unique among live requests."""

BlockId = int
"""Index of a physical KV block, 0 <= id < num_blocks."""

NO_BLOCK: BlockId = -1
"""Stands in a block table where a block was given back. Nobody reads or writes there any more."""

TokenId = int
"""Index into the model's vocabulary."""


class FinishReason(StrEnum):
    """Why a choice ended. The values are OpenAI's `finish_reason` where OpenAI has one."""

    STOP = "stop"
    """A stop token, an end-of-sequence token, or a stop string; of an embedding, the end of its prompt."""
    LENGTH = "length"
    """`max_tokens` or the context limit was reached."""
    ABORT = "abort"
    """The client cancelled or went away."""
    ERROR = "error"
    """A step that this request was part of failed."""


class Pooling(StrEnum):
    """Which hidden states of a prompt make its embedding. The values are vLLM's `pooling_type`."""

    MEAN = "MEAN"
    """The mean of all tokens'."""
    LAST = "LAST"
    """The last token's, the only one that has seen all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How far to guess ahead, by prompt lookup. Raises ValueError for nonsense."""

    num_speculative_tokens: int
    """The most guesses of one choice in one step."""
    prompt_lookup_max: int = 4
    """Longest ending of a text, in tokens, that is looked for in it."""
    prompt_lookup_min: int = 2
    """Shortest one."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_speculative_tokens <= 64:
            raise ValueError(f"num_speculative_tokens must be from 1 to 64, got {self.num_speculative_tokens}")
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max <= 32:
            raise ValueError(
                "prompt_lookup_min and prompt_lookup_max must be from 1 to 32, in this order, "
                f"got {self.prompt_lookup_min} and {self.prompt_lookup_max}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the machine and the operator allow; given to the scheduler once, as a value. Raises ValueError for nonsense.

    The machine's share (`num_blocks`, `block_size`, `vocab_size`, `max_model_len`) comes from the memory plan and the
    model, the rest from the configuration. All counts are in tokens unless the name says otherwise.
    """

    num_blocks: int
    block_size: int
    vocab_size: int
    max_model_len: int
    """Prompt plus generated tokens of one choice."""
    max_num_seqs: int = 64
    """Choices running in one step."""
    max_num_batched_tokens: int = 2048
    """Tokens computed in one step, over all choices."""
    prefill_tokens_beside_decodes: int = 0
    """Of those, the tokens of prompts in a step with decodes, if these are few (`policies.beside_decodes`); 0: all."""
    enable_prefix_caching: bool = True
    prefix_match_unit: int = 4
    """A cached block may be hit in part, by so many tokens or a multiple; from the block size on only as a whole."""
    max_num_partial_prefills: int = 1
    """Requests that may be in the middle of a chunked prefill at once."""
    long_prefill_token_threshold: int = 0
    """A prompt chunk is never longer than this in one step; 0 means no such limit."""
    block_manager: str = "v2"
    """Which room newcomers must find: for their first chunk (v1), or for prompt and expected answer (v2)."""
    scheduling_policy: str = "fcfs"
    eviction_policy: str = "adaptive"
    max_num_queued_reqs: int = 0
    """Requests that may wait beyond those that could start at once; 0 means no such limit."""
    max_num_queued_tokens: int = 0
    """Tokens, of prompts and expected answers, that may wait beyond what fits into free blocks; 0: no such limit."""
    eos_token_ids: tuple[TokenId, ...] = ()
    speculation: Speculation | None = None
    """None: nothing is guessed."""
    windows: tuple[int | None, ...] = (None,)
    """The attention window of each KV group; None: full attention."""

    @property
    def longest_chunk(self) -> int:
        """No step computes more tokens than this of one choice."""
        return min(self.long_prefill_token_threshold or self.max_num_batched_tokens, self.max_num_batched_tokens)

    def __post_init__(self) -> None:
        for name, lowest in _LOWEST_LIMITS.items():
            if getattr(self, name) < lowest:
                raise ValueError(f"{name} must be at least {lowest}, got {getattr(self, name)}")
        if not self.windows or any(window is not None and window < 1 for window in self.windows):
            raise ValueError(f"windows must be None or at least 1, for one group or more, got {self.windows}")


_LOWEST_LIMITS = {
    "num_blocks": 1,
    "block_size": 1,
    "vocab_size": 1,
    "max_model_len": 1,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "max_num_partial_prefills": 1,
    "prefix_match_unit": 1,
    "long_prefill_token_threshold": 0,
    "prefill_tokens_beside_decodes": 0,
    "max_num_queued_reqs": 0,
    "max_num_queued_tokens": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How full one replica is, now: for admission, routers and gauges. The block counts add up to the pool."""

    num_running: int
    """Choices that hold blocks."""
    num_waiting: int
    """Choices in the queue, the preempted ones too."""
    num_held: int
    """Those of the waiting that lack something from outside: their guide."""
    num_waiting_tokens: int
    """Known tokens of those: what is to be computed before the queue is empty, but for prefix hits."""
    blocks_blank: int
    blocks_cached: int
    blocks_leased: int
    """Held by choices, and by no pin."""
    blocks_pinned: int
    """Held by a pin, whoever else holds them."""
    blocks_reserved: int
    """Of the blank and cached ones: those that are kept for running choices."""
    prefix_queries: int
    """Prompt tokens of the requests that looked into the prefix cache, since the start or the last reset."""
    prefix_hits: int
    """How many of those were found."""
    tier_hits: int
    """How many of these were found in the lower tier."""
