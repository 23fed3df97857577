"""`octavo doctor --url`, `--production`: is a running server well, and fit for what will come?

Each check is a function of what the server says of itself: a number, its limit, and what to do.
"""

import argparse
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from octavo.config.machine import usable_cpus
from octavo.config.sources import Resolved
from octavo.tools import visit
from octavo.tools.cold_start import LEAST_S, MARGIN
from octavo.tools.findings import Finding, State

PATIENCE_S = 30.0
_FEW_TOKENS = 1000
"""Of fewer looked-up tokens a hit rate says nothing."""
_FEW_GAPS = 50
_MUCH_EVICTED = 0.2
"""More of all looked-up tokens lost to eviction is worth more blocks."""
_MUCH_PREEMPTED = 0.01
_JUMPY = 5.0
"""Between tokens, a 99th percentile of so many medians is a chunk of somebody's prompt."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What an operator says that will come. None: it is judged by what came so far."""

    peak: int | None = None
    """Requests at once."""
    prompt_tokens: int | None = None
    """Of a long prompt, as they come."""
    itl_s: float | None = None
    """Between tokens, for 99 of 100."""
    startup_s: float | None = None
    """What the startup probe allows: periodSeconds times failureThreshold."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server says of itself."""

    state: Mapping[str, Any]
    settings: Mapping[str, Any]
    """By path, as `scheduler.max_num_seqs`."""
    answer_s: float
    """How long it took to the only token of an answer."""
    is_here: bool
    """On this machine."""
    expected: Expected = Expected()
    refused: str | None = None
    """Why it would not answer, in its words: its queue may be full."""


Check = Callable[[Facts], Finding]


def gather(resolved: Resolved, options: argparse.Namespace) -> Facts:
    """Asks a server, and lets it generate one token; a full one may refuse that. Raises visit.ServerRefused."""

    def ask(method: str, path: str, body: Any = None) -> dict[str, Any]:
        return visit.ask(resolved.config, options, method, path, body, PATIENCE_S)

    ask("GET", "/health/ready")
    began, refused = time.perf_counter(), None
    try:
        ask("POST", "/v1/completions", {"prompt": "The capital of France is", "max_tokens": 1, "temperature": 0})
    except visit.ServerRefused as error:
        refused = str(error)
    answer_s = time.perf_counter() - began
    rows = ask("GET", "/octavo/v1/config")["settings"]
    state = ask("GET", "/octavo/v1/state")
    if refused is not None and state["load"] is None:
        raise visit.ServerRefused(refused)
    host = urlsplit(visit.url_of(resolved.config, options)).hostname
    return Facts(
        state=state,
        settings={row["setting"]: row["value"] for row in rows},
        answer_s=answer_s,
        is_here=host in ("127.0.0.1", "localhost", "::1"),
        expected=Expected(
            options.expected_peak,
            options.prompt_tokens,
            None if options.itl_target is None else options.itl_target / 1000,
            options.startup_budget,
        ),
        refused=refused,
    )


# -- is it well? -----------------------------------------------------------------------------------------------------


def check_server(facts: Facts) -> Finding:
    """Does it answer, and is it ready?"""
    server = facts.state["server"]
    text = f"octavo {server['version']} serves {server['models'][0]}, up {server['uptime_s']:.0f} s"
    if facts.refused is not None:
        return Finding(State.BROKEN, f"{text}; it refuses to generate a token: {facts.refused}", _warnings(facts))
    return Finding(State.OK, f"{text}; one token took {facts.answer_s * 1000:.0f} ms", _warnings(facts))


def _warnings(facts: Facts) -> tuple[str, ...]:
    return tuple(f"{State.WARNING}: {line}" for line in facts.state["engine"]["warnings"])


def check_engine(facts: Facts) -> Finding:
    """Did anything happen that may not?"""
    engine, totals = facts.state["engine"], facts.state["totals"]
    if totals["violations"]:
        return Finding(
            State.BROKEN, f"{totals['violations']} laws of the allocator were broken: report it, with a dump"
        )
    if totals["stalls"]:
        return Finding(State.BROKEN, f"{totals['stalls']} times nothing advanced though something waited: report it")
    if engine["lost"]:
        return Finding(State.WARNING, f"the engine was lost {engine['lost']} times: the log has its last words")
    return Finding(State.OK, "never lost, no stall, no broken law")


LIVE: Mapping[str, Check] = {"server": check_server, "engine": check_engine}
"""`--url`"""


# -- is it fit for what will come? -----------------------------------------------------------------------------------


def check_start(facts: Facts) -> Finding:
    """Does the startup probe allow a cold start?"""
    took_s = facts.state["engine"]["ready_after_s"] or 0.0
    need_s, budget_s = max(LEAST_S, MARGIN * took_s), facts.expected.startup_s
    text = f"ready {took_s:.1f} s after its start; a cold one may take {MARGIN} times that: allow {need_s:.0f} s"
    if budget_s is None:
        more = "--startup-budget SECONDS compares yours; `octavo doctor --cold-start` measures, and prints probes"
        return Finding(State.OK, text, (more,))
    if budget_s >= need_s:
        return Finding(State.OK, f"{text}, and {budget_s:.0f} s are allowed")
    state = State.BROKEN if budget_s <= took_s else State.WARNING
    return Finding(state, f"{text}, but {budget_s:.0f} s are (periodSeconds x failureThreshold of the startup probe)")


def check_concurrency(facts: Facts) -> Finding:
    """May as many run at once as will come?"""
    limit, load, peak = facts.state["limits"]["max_num_seqs"], facts.state["load"], facts.expected.peak
    if peak is not None and peak > limit:
        replicas = math.ceil(peak / limit)
        text = f"{peak} requests at once are expected, and {limit} run (--max-num-seqs): {peak - limit} would wait"
        return Finding(
            State.WARNING, text, (f"raise --max-num-seqs, as far as the KV cache goes, or run {replicas} replicas",)
        )
    if load["lacks"].get("seqs"):
        text = f"{load['lacks']['seqs']} wait for one of {limit} slots now (--max-num-seqs)"
        return Finding(State.WARNING, text, ("raise it, as far as the KV cache goes, or run more replicas",))
    if peak is None:
        return Finding(State.OK, f"{limit} run at once, {load['running']} do now; --expected-peak N compares")
    return Finding(State.OK, f"{peak} requests at once are expected, and {limit} run")


def check_kv_cache(facts: Facts) -> Finding:
    """Does the KV cache hold as many requests as may run?"""
    engine, limits, totals = facts.state["engine"], facts.state["limits"], facts.state["totals"]
    room, finished = engine["num_blocks"] * engine["block_size"], sum(totals["finished"].values())
    wanted = min(limits["max_num_seqs"], facts.expected.peak or limits["max_num_seqs"])
    tokens = (totals["prompt_tokens"] + totals["generated_tokens"]) / finished if finished else engine["max_model_len"]
    size = f"of {tokens:.0f} tokens, the mean of {finished}" if finished > 1 else "at full context"
    each = tokens if finished > 1 else engine["max_model_len"]
    fit, prompt = room / each, facts.expected.prompt_tokens
    long = "" if prompt is None else f"; {room / prompt:.1f} prompts of {prompt} tokens at once"
    text = f"{room:,} tokens: {fit:.1f} requests {size}, and {wanted} may run{long}"
    if fit >= wanted:
        return Finding(State.OK, text)
    remedy = "raise --num-blocks or --kv-cache-memory-bytes, or lower --max-num-seqs: else they wait, or are preempted"
    return Finding(State.WARNING if finished > 1 else State.OK, text, (remedy,))


def check_token_budget(facts: Facts) -> Finding:
    """Do prompts in a step keep those waiting that have begun?"""
    limits, gaps = facts.state["limits"], facts.state["window"]["inter_token"]
    budget, target_s = limits["max_num_batched_tokens"], facts.expected.itl_s
    prompt = facts.expected.prompt_tokens
    steps = "" if prompt is None else f"; a prompt of {prompt} takes {math.ceil(prompt / budget)} steps"
    text = f"{budget} tokens a step (--max-num-batched-tokens){steps}"
    if gaps["count"] < _FEW_GAPS:
        return Finding(State.OK, f"{text}; too few tokens in the last seconds to judge the time between them")
    p50, p99 = gaps["p50"], gaps["p99"]
    text += f"; {p50 * 1000:.0f} ms between tokens, {p99 * 1000:.0f} ms for the slowest of 100"
    if (target_s is None or p99 <= target_s) and (target_s is not None or p99 <= _JUMPY * p50):
        return Finding(State.OK, text)
    wanted = "" if target_s is None else f", {target_s * 1000:.0f} ms are wanted"
    if p50 > (target_s or math.inf):
        remedy = "steps without prompts are too slow already: fewer --max-num-seqs, more cores, or smaller weights"
    else:
        remedy = "chunks of prompts are too long: lower --prefill-tokens-beside-decodes, or --max-num-batched-tokens"
    return Finding(State.WARNING, text + wanted, (remedy,))


_REMEDIES = {
    "evicted": "more KV blocks, pins for what all share (`octavo pin`), or a lower tier (--kv-offload-bytes)",
    "tokens_differ_at": "put what varies at the end of prompts; `octavo explain cache PROMPT` shows where they part",
    "different_namespace": "the same prompts come under other salts or tenants: `cache: NAME` shares among tenants",
    "shorter_than_block": "a smaller --block-size keeps shorter beginnings",
    "prompt_logprobs": "requests ask for logprobs of their prompts, which are not cached",
}


def check_prefix_cache(facts: Facts) -> Finding:
    """Is it on, does it help, and what would help more?"""
    totals = facts.state["totals"]
    if not facts.state["limits"]["enable_prefix_caching"]:
        text = "off: every prompt is computed whole, also what all have in common"
        return Finding(State.WARNING, text, ("start without --no-enable-prefix-caching",))
    queries, hits = totals["cache_queries"], totals["cache_hits"]
    if queries < _FEW_TOKENS:
        return Finding(State.OK, f"on; {queries} tokens were looked up, too few to judge")
    text = f"on; {hits / queries:.0%} of {queries:,} prompt tokens were cached"
    missed = sorted(totals["missed_tokens"].items(), key=lambda each: -each[1])
    details = tuple(
        f"{count:,} tokens {reason}{f': {_REMEDIES[reason]}' if reason in _REMEDIES else ''}"
        for reason, count in missed[:3]
    )
    much = totals["missed_tokens"].get("evicted", 0) > _MUCH_EVICTED * queries
    return Finding(State.WARNING if much else State.OK, text, details)


def check_preemption(facts: Facts) -> Finding:
    """Do running requests lose their blocks, and more than before?"""
    totals, window = facts.state["totals"], facts.state["window"]
    count, finished = sum(totals["preemptions"].values()), sum(totals["finished"].values())
    ended = window["requests_per_s"] * window["seconds"]
    share = count / finished if finished else 0.0
    now = window["preemptions"] / ended if ended else float(bool(window["preemptions"]))
    text = f"{count} of {finished} choices, {totals['tokens_lost']:,} tokens computed again"
    text += f"; {window['preemptions']} in the last {window['seconds']:.0f} s"
    if max(share, now) <= _MUCH_PREEMPTED:
        return Finding(State.OK, text)
    trend = "more than before" if now > share else "less than before" if now < share else "as before"
    remedy = "raise --num-blocks or --kv-cache-memory-bytes, lower --max-num-seqs, or keep --block-manager v2"
    return Finding(State.WARNING, f"{text}: {trend}", (remedy,))


def check_cores(facts: Facts) -> Finding:
    """Has each thread a CPU?"""
    threads = facts.state["engine"]["num_threads"]
    line = next((each for each in facts.state["engine"]["report"] if each.startswith("threads:")), "")
    text = f"{threads} threads compute{f' ({line})' if line else ''}"
    if not facts.is_here:
        return Finding(State.OK, text)
    cpus, reason = usable_cpus()
    if threads > cpus:
        more = f"a step waits for its slowest thread: --num-threads {cpus}"
        return Finding(State.WARNING, f"{text}, and there are {cpus} CPUs: {reason}", (more,))
    return Finding(State.OK, f"{text}; there are {cpus} CPUs: {reason}")


def check_queue(facts: Facts) -> Finding:
    """Is how much may wait limited?"""
    reqs = facts.settings["queue.max_num_queued_reqs"]
    tokens = facts.settings["queue.max_num_queued_tokens"]
    if not reqs and not tokens:
        more = "clients time out and come back while their old requests are still computed: --max-num-queued-reqs"
        return Finding(State.WARNING, "as many requests may wait as come", (more,))
    limits = [f"{reqs} requests" if reqs else "", f"{tokens} tokens" if tokens else ""]
    return Finding(State.OK, f"at most {' and '.join(filter(None, limits))} wait; the rest is told when to come back")


def check_keys(facts: Facts) -> Finding:
    """Who may use it?"""
    from octavo.server.lifecycle import is_public

    host = facts.settings["server.host"]
    if facts.settings["server.api_key"] or facts.settings["server.tenants"]:
        return Finding(State.OK, "a key is asked for")
    if is_public(host):
        return Finding(State.WARNING, f"no key is asked for on {host}", ("set --api-key or --tenants",))
    return Finding(State.OK, f"no key is asked for; only its machine can reach {host}")


def check_endings(facts: Facts) -> Finding:
    """What happens when it ends, or its engine does?"""
    wait_s = facts.settings["server.shutdown_delay"] + facts.settings["server.shutdown_timeout"]
    failure = facts.settings["server.on_engine_failure"]
    dumps = facts.settings["engine.crash_dump_dir"]
    grace = f"whoever stops it must wait for more than {wait_s:g} s (terminationGracePeriodSeconds)"
    restart = "another engine is started" if failure == "restart" else "the server ends, and must be started again"
    details = (grace, f"when the engine dies {restart} (--on-engine-failure {failure})")
    if dumps == "off":
        return Finding(State.WARNING, "nothing is written down when something breaks (--crash-dump-dir off)", details)
    return Finding(State.OK, details[0], details[1:])


PRODUCTION: Mapping[str, Check] = {
    **LIVE,
    "start": check_start,
    "cores": check_cores,
    "concurrency": check_concurrency,
    "kv cache": check_kv_cache,
    "token budget": check_token_budget,
    "prefix cache": check_prefix_cache,
    "preemption": check_preemption,
    "queue": check_queue,
    "keys": check_keys,
    "endings": check_endings,
}
"""`--production`"""
