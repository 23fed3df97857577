"""The dashboards, as tables of panels: overview, cache, scheduler, tenants, and latency objectives."""

from deploy.generate.panels import ENGINE, HOST, Dashboard, Kind, Panel, mean, quantiles, rate, spread, total

OVERVIEW = Dashboard(
    name="overview",
    title="Octavo / Overview",
    text="Is it well, how much does it do, and how long do its clients wait?",
    rows=(
        (
            "Now",
            (
                Panel(
                    title="Alerts",
                    text="Alerts of Octavo that fire now, of all jobs. The runbook in docs/operations.md has each by "
                    "its name.",
                    queries=(('sum(ALERTS{alertname=~"Octavo.*", alertstate="firing"}) or vector(0)', "fire"),),
                    kind=Kind.NUMBER,
                    width=3,
                ),
                Panel(
                    title="Engines ready",
                    text="Fewer than there should be: OctavoEngineNotReady in the runbook.",
                    queries=((f'sum(octavo:engine_state{{{ENGINE}, state="ready"}})', "ready"),),
                    kind=Kind.NUMBER,
                    width=3,
                ),
                Panel(
                    title="Running",
                    text="Choices in the batch. At --max-num-seqs, more only wait.",
                    queries=((total("vllm:num_requests_running"), "running"),),
                    kind=Kind.NUMBER,
                    width=3,
                ),
                Panel(
                    title="Waiting",
                    text="Choices that wait for a turn. Always above 0: there is more to do than this fleet can.",
                    queries=((total("vllm:num_requests_waiting"), "waiting"),),
                    kind=Kind.NUMBER,
                    width=3,
                ),
                Panel(
                    title="HTTP requests",
                    text="Requests that generate and are not answered yet. Each may have several choices.",
                    queries=((total("octavo:http_requests_in_flight", HOST), "in flight"),),
                    kind=Kind.NUMBER,
                    width=3,
                ),
                Panel(
                    title="KV cache in use",
                    text="Share of the blocks that are held. Near 1 with preemptions: it is too small for what runs.",
                    queries=((f"avg(vllm:kv_cache_usage_perc{{{ENGINE}}})", "in use"),),
                    unit="percentunit",
                    kind=Kind.SHARE,
                    width=3,
                ),
                Panel(
                    title="Prompt tokens from the cache",
                    text="Share of looked-up prompt tokens that were found. The cache dashboard says why the others "
                    "were not.",
                    queries=(
                        (f"{rate('vllm:prefix_cache_hits_total')} / {rate('vllm:prefix_cache_queries_total')}", "hits"),
                    ),
                    unit="percentunit",
                    kind=Kind.SHARE,
                    width=3,
                ),
                Panel(
                    title="Engines lost",
                    text="Engines that died within the last hour. Not 0: OctavoEngineRestarts in the runbook.",
                    queries=((f"sum(increase(octavo:engine_losses_total{{{ENGINE}}}[1h]))", "lost"),),
                    kind=Kind.NUMBER,
                    width=3,
                ),
            ),
        ),
        (
            "Work",
            (
                Panel(
                    title="Tokens",
                    text="Prompt tokens (computed or cached) and generated tokens a second.",
                    queries=(
                        (rate("vllm:generation_tokens_total"), "generated"),
                        (rate("vllm:prompt_tokens_total"), "prompts"),
                        (rate("vllm:prompt_tokens_cached_total"), "prompts, cached"),
                    ),
                ),
                Panel(
                    title="Requests ended",
                    text="Choices a second by how they ended. abort: the client went away. error: look at the log.",
                    queries=((rate("vllm:request_success_total", by="finished_reason"), "{{finished_reason}}"),),
                    kind=Kind.AREAS,
                ),
                Panel(
                    title="Answers by status",
                    text="HTTP answers a second. 503 with queue_full: the queue's limit. 499: the client left first.",
                    queries=((rate("octavo:http_answers_total", HOST, by="status"), "{{status}}"),),
                    kind=Kind.AREAS,
                ),
            ),
        ),
        (
            "Waiting for it",
            (
                Panel(
                    title="Time to first token",
                    text="From arrival to the first token: queue, prefill, one step. Long with a short queue: long "
                    "prompts.",
                    queries=quantiles("vllm:time_to_first_token_seconds"),
                    unit="s",
                ),
                Panel(
                    title="Time between tokens",
                    text="Between two tokens of a choice. A high p99 beside a low p50: prefill chunks among the "
                    "decodes.",
                    queries=quantiles("vllm:inter_token_latency_seconds"),
                    unit="s",
                ),
                Panel(
                    title="Whole answers",
                    text="From arrival to the end of a choice.",
                    queries=quantiles("vllm:e2e_request_latency_seconds"),
                    unit="s",
                ),
            ),
        ),
        (
            "Processes",
            (
                Panel(
                    title="Memory",
                    text="Resident memory of server and engine. It grows to a level and stays there.",
                    queries=(
                        (f"sum(process_resident_memory_bytes{{{HOST}}})", "servers"),
                        (f"sum(octavo:engine_resident_memory_bytes{{{ENGINE}}})", "engines"),
                    ),
                    unit="bytes",
                ),
                Panel(
                    title="Errors by code",
                    text="Answers a second that were errors. `octavo explain error CODE` says what each means.",
                    queries=((f"{rate('octavo:http_errors_total', HOST, by='code')} or vector(0)", "{{code}}"),),
                ),
                Panel(
                    title="What runs",
                    text="Version, kernels, threads and number formats of each engine.",
                    queries=((f"octavo:engine_info{{{ENGINE}}}", ""),),
                    kind=Kind.FACTS,
                ),
            ),
        ),
    ),
)

CACHE = Dashboard(
    name="cache",
    title="Octavo / KV cache",
    text="What is in the blocks, what is found again, and why the rest was not.",
    rows=(
        (
            "Blocks",
            (
                Panel(
                    title="Blocks by state",
                    text="They always add up. leased: running choices hold them. cached: nobody does, but they can be "
                    "hit. reserved: kept for answers that run. pinned: POST /octavo/v1/pins.",
                    queries=((total("octavo:blocks", by="state"), "{{state}}"),),
                    kind=Kind.AREAS,
                    width=12,
                ),
                Panel(
                    title="Stored and evicted",
                    text="Blocks a second that became findable, and that were given up. Both high: more distinct "
                    "prompts than the cache holds. More memory, or a tier (--kv-offload-bytes).",
                    queries=(
                        (rate("octavo:blocks_stored_total"), "stored"),
                        (rate("octavo:blocks_evicted_total"), "evicted"),
                    ),
                    width=6,
                ),
                Panel(
                    title="Life of a cached block",
                    text="How long a block could be found before it was evicted. Shorter than the pause between two "
                    "turns of a conversation: the second turn finds nothing.",
                    queries=quantiles("vllm:kv_block_lifetime_seconds"),
                    unit="s",
                    width=6,
                ),
            ),
        ),
        (
            "Hits",
            (
                Panel(
                    title="Where prompt tokens came from",
                    text="local_compute: computed. The others were found: in the KV cache or the tier below it.",
                    queries=((rate("vllm:prompt_tokens_by_source_total", by="source"), "{{source}}"),),
                    kind=Kind.AREAS,
                ),
                Panel(
                    title="Share of prompt tokens found",
                    text="Found tokens of those looked up, in the KV cache, and of the rest in the tier below it.",
                    queries=(
                        (
                            f"{rate('vllm:prefix_cache_hits_total')} / {rate('vllm:prefix_cache_queries_total')}",
                            "cache",
                        ),
                        (
                            f"{rate('vllm:external_prefix_cache_hits_total')} / "
                            f"{rate('vllm:external_prefix_cache_queries_total')}",
                            "tier",
                        ),
                    ),
                    unit="percentunit",
                ),
                Panel(
                    title="Why tokens were not found",
                    text="Prompt tokens a second that were computed, by why. `octavo explain cache` asks for one "
                    "prompt.",
                    queries=((rate("octavo:prefix_cache_miss_tokens_total", by="reason"), "{{reason}}"),),
                    kind=Kind.AREAS,
                ),
            ),
        ),
        (
            "The tier below",
            (
                Panel(
                    title="KV by where it is",
                    text="Bytes by tier and state.",
                    queries=((total("octavo:kv_bytes", by="tier, state"), "{{tier}} {{state}}"),),
                    unit="bytes",
                ),
                Panel(
                    title="Moved",
                    text="Bytes a second to the tier (store) and back (load).",
                    queries=((rate("octavo:kv_offload_moved_bytes_total", by="direction"), "{{direction}}"),),
                    unit="Bps",
                ),
                Panel(
                    title="Failures of the tier",
                    text="Blocks a second that could not be stored or loaded, or that it was too slow for. Answers "
                    "are right all the same: what is lost is computed again.",
                    queries=((rate("octavo:kv_offload_failures_total", by="kind"), "{{kind}}"),),
                ),
            ),
        ),
    ),
)

SCHEDULER = Dashboard(
    name="scheduler",
    title="Octavo / Scheduler",
    text="What a step is made of, who waits for what, and what is thrown away.",
    rows=(
        (
            "Steps",
            (
                Panel(
                    title="Time by phase",
                    text="Seconds of work a second, by phase of a step. The sum near 1: the engine is never idle.",
                    queries=((rate("octavo:step_phase_seconds_total", by="phase"), "{{phase}}"),),
                    kind=Kind.AREAS,
                ),
                Panel(
                    title="Time of a step",
                    text="How long steps take. Long ones hold up all decodes in them: --prefill-tokens-beside-decodes, "
                    "or an objective (--slo-itl-ms).",
                    queries=spread("octavo:step_seconds"),
                    unit="s",
                    kind=Kind.HEAT,
                ),
                Panel(
                    title="Tokens in a step",
                    text="Mean tokens computed in a step: prompts in chunks and decodes together.",
                    queries=((mean("vllm:iteration_tokens_total"), "tokens"),),
                ),
            ),
        ),
        (
            "Waiting",
            (
                Panel(
                    title="Running and waiting",
                    text="Choices in the batch, and those that wait.",
                    queries=(
                        (total("vllm:num_requests_running"), "running"),
                        (total("vllm:num_requests_waiting"), "waiting"),
                    ),
                ),
                Panel(
                    title="Waiting, by what they lack",
                    text="blocks: the KV cache is full. seqs: --max-num-seqs. tokens: the step is full. `octavo "
                    "explain request ID` tells it for one.",
                    queries=((total("octavo:num_requests_waiting_by_reason", by="reason"), "{{reason}}"),),
                    kind=Kind.AREAS,
                ),
                Panel(
                    title="Time in the queue",
                    text="From arrival to the first step.",
                    queries=quantiles("vllm:request_queue_time_seconds"),
                    unit="s",
                ),
            ),
        ),
        (
            "Lost",
            (
                Panel(
                    title="Preemptions",
                    text="A second, by cause. blocks: one that was ahead needed them. A few are no harm.",
                    queries=((rate("octavo:preemptions_total", by="cause"), "{{cause}}"),),
                ),
                Panel(
                    title="Computed in vain",
                    text="Share of the computed tokens that preemptions threw away. Above 5 %: fewer --max-num-seqs, "
                    "more memory, or a tier to swap to (--kv-offload-bytes).",
                    queries=(
                        (
                            f"{rate('octavo:preempted_tokens_total')} / {rate('vllm:iteration_tokens_total_sum')}",
                            "lost",
                        ),
                    ),
                    unit="percentunit",
                ),
                Panel(
                    title="Sent away",
                    text="Requests a second that found the queue full, by which limit. They were told when to come "
                    "back.",
                    queries=((rate("vllm:admission_rejections_total", by="reason"), "{{reason}}"),),
                ),
            ),
        ),
        (
            "Faults",
            (
                Panel(
                    title="Stalled plans",
                    text="Plans in a row that advanced nothing though something waits. Not 0: OctavoStalled in the "
                    "runbook.",
                    queries=((f"max(octavo:stalled_steps{{{ENGINE}}})", "plans"),),
                    width=6,
                ),
                Panel(
                    title="Broken laws",
                    text="What --audit found. Not 0: OctavoLawsBroken in the runbook.",
                    queries=((rate("octavo:audit_violations_total"), "laws"),),
                    width=6,
                ),
                Panel(
                    title="Signs of life",
                    text="Since the last one of each engine. Above 15 s /health says so.",
                    queries=((f"octavo:engine_heartbeat_age_seconds{{{ENGINE}}}", "{{instance}}"),),
                    unit="s",
                    width=6,
                ),
                Panel(
                    title="Guesses that were right",
                    text="Tokens guessed ahead (--speculative-config) that held. 0 where nothing is guessed.",
                    queries=(
                        (rate("vllm:spec_decode_num_draft_tokens_total"), "guessed"),
                        (rate("vllm:spec_decode_num_accepted_tokens_total"), "right"),
                    ),
                    width=6,
                ),
            ),
        ),
    ),
)

TENANTS = Dashboard(
    name="tenants",
    title="Octavo / Tenants",
    text="Who uses how much, and who is held back by quotas.",
    by_tenant=True,
    rows=(
        (
            "Use",
            tuple(
                Panel(title=title, text=text, queries=((query, "{{tenant}}"),), kind=Kind.AREAS)
                for title, text, query in (
                    (
                        "Generated tokens",
                        "A second, by tenant.",
                        rate("octavo:tenant_generation_tokens_total", f'{ENGINE}, tenant=~"$tenant"', by="tenant"),
                    ),
                    (
                        "Prompt tokens",
                        "A second, computed or cached, by tenant.",
                        rate("octavo:tenant_prompt_tokens_total", f'{ENGINE}, tenant=~"$tenant"', by="tenant"),
                    ),
                    (
                        "Running or waiting",
                        "Requests in the engine, by tenant.",
                        total("octavo:tenant_requests_live", f'{ENGINE}, tenant=~"$tenant"', by="tenant"),
                    ),
                )
            ),
        ),
        (
            "Cache and quotas",
            (
                Panel(
                    title="Requests",
                    text="A second, by tenant.",
                    queries=(
                        (
                            rate("octavo:tenant_requests_total", f'{ENGINE}, tenant=~"$tenant"', by="tenant"),
                            "{{tenant}}",
                        ),
                    ),
                ),
                Panel(
                    title="Share of prompt tokens found",
                    text="In the tenant's own cache, or the one it shares.",
                    queries=(
                        (
                            rate("octavo:tenant_cached_tokens_total", f'{ENGINE}, tenant=~"$tenant"', by="tenant")
                            + " / "
                            + rate("octavo:tenant_prompt_tokens_total", f'{ENGINE}, tenant=~"$tenant"', by="tenant"),
                            "{{tenant}}",
                        ),
                    ),
                    unit="percentunit",
                ),
                Panel(
                    title="Held back by a quota",
                    text="Requests a second that got a 429. The tenants file says how much each may have.",
                    queries=(
                        (
                            rate("octavo:tenant_over_quota_total", f'{ENGINE}, tenant=~"$tenant"', by="tenant, quota"),
                            "{{tenant}} {{quota}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
)

SLO = Dashboard(
    name="slo",
    title="Octavo / Latency objectives",
    text="How the p99 stands against its objective, and what the controller does about it.",
    rows=(
        (
            "Against the objective",
            (
                Panel(
                    title="Time to first token, p99",
                    text="Over 5 minutes, as the rules record it, beside --slo-ttft-ms where there is one. Above it "
                    "for ten minutes: OctavoTTFTOverObjective in the runbook.",
                    queries=(
                        (f"replica:octavo_ttft_seconds:p99_5m{{{ENGINE}}}", "{{instance}}"),
                        (f"replica:octavo_ttft_objective_seconds:max{{{ENGINE}}}", "objective"),
                    ),
                    unit="s",
                    width=12,
                ),
                Panel(
                    title="Time between tokens, p99",
                    text="Over 5 minutes, as the rules record it, beside --slo-itl-ms where there is one. Above it "
                    "for ten minutes: OctavoITLOverObjective in the runbook.",
                    queries=(
                        (f"replica:octavo_itl_seconds:p99_5m{{{ENGINE}}}", "{{instance}}"),
                        (f"replica:octavo_itl_objective_seconds:max{{{ENGINE}}}", "objective"),
                    ),
                    unit="s",
                    width=12,
                ),
            ),
        ),
        (
            "The controller",
            (
                Panel(
                    title="As it sees it",
                    text="The p99 by which it decided last, and what it aims at. Empty without --slo-ttft-ms, "
                    "--slo-itl-ms.",
                    queries=((f"octavo:slo_seconds{{{ENGINE}}}", "{{objective}} {{kind}}"),),
                    unit="s",
                ),
                Panel(
                    title="What a step may have",
                    text="tokens and seqs at most. At their floor with the objective still missed: it cannot be met "
                    "here.",
                    queries=((f"octavo:throttle{{{ENGINE}}}", "{{of}}"),),
                ),
                Panel(
                    title="Decisions",
                    text="A second, by reason. out_of_reach: nothing helps but less load or a faster machine.",
                    queries=((rate("octavo:slo_decisions_total", by="reason"), "{{reason}}"),),
                ),
            ),
        ),
        (
            "Where the time goes",
            (
                Panel(
                    title="Queue",
                    text="From arrival to the first step.",
                    queries=quantiles("vllm:request_queue_time_seconds"),
                    unit="s",
                ),
                Panel(
                    title="Prefill",
                    text="From the first step to the first token.",
                    queries=quantiles("vllm:request_prefill_time_seconds"),
                    unit="s",
                ),
                Panel(
                    title="Decode",
                    text="From the first token to the end.",
                    queries=quantiles("vllm:request_decode_time_seconds"),
                    unit="s",
                ),
            ),
        ),
    ),
)

DASHBOARDS = (OVERVIEW, CACHE, SCHEDULER, TENANTS, SLO)
