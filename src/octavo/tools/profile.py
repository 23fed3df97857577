"""`octavo profile step`: where a step's time goes, by phase and by kernel, beside what this machine could do at most.

The engine's own loop turns, over a port that hands it requests and a backend that is asked for its spans.
"""

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from octavo.boot import build_replica, open_model
from octavo.config.sources import Resolved
from octavo.core.ports import Capacity, MachineRates, Traceable
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.engine.clock import now
from octavo.engine.heap import settled
from octavo.engine.loop import EngineLoop, Replica
from octavo.tools.chrome_trace import chrome_trace
from octavo.tools.roofline import Profile, lines, summarise
from octavo.tools.terminal import note, status_line, to_json, write
from octavo.tools.turns import Failed, Feed, Turn, Watch

MEASURE_S = 1.0
"""How long the machine's own limits are measured."""
SEED = 20


class NothingToProfile(ValueError):
    """These steps cannot run here; the message says why."""


def main(resolved: Resolved, options: argparse.Namespace) -> int:
    """Runs prompts, then decode steps, and prints a table for each, or all of it as JSON; a trace where asked for."""
    config = resolved.config
    batch, prompt_len = options.batch, options.prompt_len
    context = prompt_len if options.context is None else options.context
    _check_counts({"--batch": batch, "--prompt-len": prompt_len, "--context": context, "--steps": options.steps})
    if options.trace:
        _check_writable(Path(options.trace))
    with status_line() as show:
        replica = build_replica(config, open_model(config), show)
        try:
            _check_room(replica, batch, prompt_len, context + options.steps + 1)
            if not isinstance(replica.backend, Traceable):
                raise NothingToProfile(
                    f"the backend {config.engine.backend}, as it is configured, cannot say where its time goes; only "
                    f"the backend cpu can, without kv_offload_bytes and fault"
                )
            show("measuring what the machine can do")
            rates = replica.backend.measure_rates(MEASURE_S)
            show(f"running {batch} prompts of {prompt_len:,} tokens, and {options.steps} steps behind {context:,}")
            prompts, decodes = _run(replica, replica.backend, batch, prompt_len, context, options.steps)
        finally:
            replica.backend.close()
    profiles = [summarise("prompt", prompts, rates), summarise("decode", decodes, rates)]
    if options.trace:
        Path(options.trace).write_text(json.dumps(chrome_trace([*prompts, *decodes])), encoding="utf-8")
        note(f"the trace is in {options.trace}: open it at https://ui.perfetto.dev")
    if options.json:
        work = {"batch": batch, "prompt_len": prompt_len, "context": context, "steps": options.steps}
        write(to_json(_as_json(replica, work, rates, profiles), indent=2) + "\n")
    else:
        write("\n".join([*_head(replica, rates), *(line for each in profiles for line in ("", *lines(each)))]) + "\n")
    return 0


def _check_writable(path: Path) -> None:
    """Before anything is measured that could not be kept."""
    try:
        path.touch()
    except OSError as error:
        raise NothingToProfile(f"cannot write the trace {path}: {error.strerror}") from error


def _check_counts(counts: dict[str, int]) -> None:
    for flag, count in counts.items():
        if count < 1:
            raise NothingToProfile(f"{flag} is {count}; it must be at least 1")


def _check_room(replica: Replica, batch: int, prompt_len: int, longest: int) -> None:
    """All requests must run at once, to their end: else something other than the steps asked for is measured."""
    limits, capacity = replica.scheduler.limits, replica.facts.capacity
    longest = max(longest, prompt_len + 1)
    if batch > limits.max_num_seqs:
        raise NothingToProfile(f"--batch {batch} is more than {limits.max_num_seqs} at once; raise --max-num-seqs")
    if longest > capacity.max_model_len:
        raise NothingToProfile(
            f"requests of {longest:,} tokens are longer than the {capacity.max_model_len:,} that the engine takes; "
            f"lower --context or --steps, or raise --max-model-len"
        )
    needed = batch * _blocks(longest, capacity)
    if needed > capacity.num_blocks:
        raise NothingToProfile(
            f"{batch} requests of {longest:,} tokens need {needed:,} blocks of {capacity.block_size}, and there are "
            f"{capacity.num_blocks:,}; lower --batch or --context, or raise --num-blocks"
        )


def _blocks(tokens: int, capacity: Capacity) -> int:
    return -(-tokens // capacity.block_size)


# -- the steps -------------------------------------------------------------------------------------------------------


def _run(
    replica: Replica, backend: Traceable, batch: int, prompt_len: int, context: int, steps: int
) -> tuple[list[Turn], list[Turn]]:
    """The turns of prompts that are done for the second time, and `steps` turns in which all of them decode."""
    watch = Watch(replica.backend, backend)
    loop = EngineLoop(replace(replica, backend=watch))
    rng = random.Random(SEED)

    def feed(name: str, length: int, max_tokens: int, wanted: int | None) -> Feed:
        vocab = replica.facts.capacity.vocab_size
        prompts = [tuple(rng.randrange(vocab) for _ in range(length)) for _ in range(batch)]
        return Feed([_request(f"{name}-{i}", ids, max_tokens) for i, ids in enumerate(prompts)], watch, wanted)

    with settled():
        try:
            loop.run(feed("warm", prompt_len, 2, None))
            prompts = feed("prompt", prompt_len, 1, None)
            loop.run(prompts)
            decodes = feed("decode", context, replica.facts.capacity.max_model_len - context, steps)
            loop.run(decodes)
        except Failed as error:
            raise NothingToProfile(str(error)) from error
    return prompts.turns, decodes.decodes


def _request(name: str, prompt: tuple[int, ...], max_tokens: int) -> Request:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return Request(request_id=name, prompt=prompt, params=params, arrival_s=now())


# -- what is printed -------------------------------------------------------------------------------------------------


def _head(replica: Replica, rates: MachineRates) -> Iterator[str]:
    facts = replica.facts
    formats = f"{facts.weight_format} weights, KV {facts.kv_cache_dtype}"
    yield f"{facts.model}: {formats}, {facts.isa}, {facts.num_threads} threads"
    peaks = ", ".join(f"{kind} {rate / 1e9:,.0f} G" for kind, rate in rates.operations_per_s.items())
    yield f"measured limits: {rates.bytes_per_s / 1e9:.1f} GB/s read from memory; operations a second: {peaks}"


def _as_json(
    replica: Replica, work: dict[str, int], rates: MachineRates, profiles: Sequence[Profile]
) -> dict[str, Any]:
    facts = replica.facts
    names = ("model", "weight_format", "kv_cache_dtype", "isa", "num_threads")
    return {
        **{name: getattr(facts, name) for name in names},
        **work,
        "limits": {"bytes_per_s": rates.bytes_per_s, "operations_per_s": dict(rates.operations_per_s)},
        "profiles": [asdict(profile) for profile in profiles],
    }
