"""Metrics that vLLM has and Octavo has not, each with the reason: so that nobody looks for them."""

ABSENT: dict[str, str] = {
    "vllm:lora_requests_info": "there are no adapters",
    "vllm:mm_cache_queries, vllm:mm_cache_hits": "models read text only",
    "vllm:engine_sleep_state, vllm:sleep_mode_...": "engines do not sleep; one that ends leaves its disk tier",
    "vllm:num_requests_kv_fetch_by_stage": "KV comes from a tier of the same engine only: "
    "`octavo:num_requests_waiting_by_reason`, reason loading",
    "vllm:prompt_tokens_recomputed": "the last token of a prompt is computed always, and never counted as a hit",
    "vllm:watermark_requests": "texts are not watermarked",
    "vllm:kv_block_idle_before_evict_seconds, vllm:kv_block_reuse_gap_seconds": "events tell when a block becomes "
    "findable and when it goes, not each use: `vllm:kv_block_lifetime_seconds`, `octavo:prefix_cache_misses`",
    "vllm:estimated_flops_per_gpu_total and the like": "estimates are no measurements: `octavo:step_phase_seconds`",
    "vllm:diffusion_..., vllm:rl_weight_update_..., vllm:websocket_...": "there are no such models, updates, sockets",
    "vllm:tool_calls_completed_total": "arguments of strict tools are right by grammar; others are not checked",
    "vllm:nixl_..., vllm:mooncake_store_..., vllm:hf3fs_...": "there are no such connectors",
    "vllm:num_requests_swapped, vllm:cpu_cache_usage_perc": "gone from vLLM, too",
    "http_request_size_bytes, http_response_size_bytes": "the length of a stream is not known before its end",
}
