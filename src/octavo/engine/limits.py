"""The limits that policy is given, of what is configured, what the model is, and what machine and memory allow."""

import json

from octavo.config.checks import SPECULATIVE_KEYS
from octavo.config.schema import Config
from octavo.core.types import Limits, Speculation
from octavo.engine.memory import MemoryPlan
from octavo.models.checkpoint import Checkpoint
from octavo.models.layer_groups import layer_groups


def limits_of(config: Config, checkpoint: Checkpoint, plan: MemoryPlan, busy_tokens: int) -> Limits:
    """`busy_tokens` as the backend's capacity has them."""
    scheduler = config.scheduler
    return Limits(
        num_blocks=plan.num_blocks,
        block_size=config.cache.block_size,
        vocab_size=checkpoint.spec.vocab_size,
        max_model_len=plan.max_model_len,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        prefill_tokens_beside_decodes=_beside_decodes(config, busy_tokens),
        enable_prefix_caching=config.cache.enable_prefix_caching,
        prefix_match_unit=config.cache.prefix_match_unit,
        max_num_partial_prefills=scheduler.max_num_partial_prefills,
        long_prefill_token_threshold=scheduler.long_prefill_token_threshold,
        block_manager=scheduler.block_manager,
        scheduling_policy=scheduler.scheduling_policy,
        eviction_policy=config.cache.eviction_policy,
        max_num_queued_reqs=config.queue.max_num_queued_reqs,
        max_num_queued_tokens=config.queue.max_num_queued_tokens,
        eos_token_ids=checkpoint.vocabulary.eos_token_ids,
        windows=layer_groups(checkpoint.spec).windows,
        speculation=_speculation(scheduler.speculative_config),
    )


def longest_chunk(config: Config) -> int:
    """`Limits.longest_chunk`, before there are limits."""
    scheduler = config.scheduler
    threshold = scheduler.long_prefill_token_threshold or scheduler.max_num_batched_tokens
    return min(threshold, scheduler.max_num_batched_tokens)


def _beside_decodes(config: Config, busy_tokens: int) -> int:
    """Unless somebody says what prompts may have, or how long a next token may take: what they lose nothing with."""
    asked = config.scheduler.prefill_tokens_beside_decodes
    if asked is not None:
        return asked
    return busy_tokens if config.slo.slo_itl_ms is None else 0


def _speculation(text: str | None) -> Speculation | None:
    asked = {} if text is None else json.loads(text)
    return Speculation(**{key: asked[key] for key in SPECULATIVE_KEYS if key in asked}) if asked else None
