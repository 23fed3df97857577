"""One engine in its own Python, timed: prompts, and the tokens after them. Runs alone, so it imports nothing from here.

    python driver.py '{"engine": "vllm", "model": PATH, "works": [[BATCH, PROMPT, NEW, ROUNDS], ...]}'

Prompts are random token ids, no two alike; tokens are the most likely ones and never end early. A round asks new
prompts for one token (`first_s`), and then, with their KV in the prefix cache, for one again (`again_s`) and for NEW
more (`full_s`): timed with the prompts, the tokens would vanish in their noise. One JSON line a work has all rounds.
"""

import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any

Prompts = list[list[int]]
Generate = Callable[[Prompts, int], list[int]]
"""Prompts and a number of new tokens -> how many tokens came for each."""
Open = Callable[..., Generate]
"""The model, the longest request, and requests at once; ours takes settings beside them."""
MAX_BATCHED_TOKENS = 2048


def octavo(model: str, longest: int, at_once: int, **options: str) -> Generate:
    from octavo import LLM, SamplingParams

    llm = LLM(model, enable_prefix_caching=True, max_model_len=longest, **_limits(at_once), **options)
    return _as_vllm(llm, SamplingParams)


def vllm(model: str, longest: int, at_once: int) -> Generate:
    from vllm import LLM, SamplingParams  # pyright: ignore

    llm = LLM(model, dtype="bfloat16", enable_prefix_caching=True, max_model_len=longest, **_limits(at_once))
    return _as_vllm(llm, SamplingParams)


def _limits(at_once: int) -> dict[str, int]:
    return {"max_num_seqs": at_once, "max_num_batched_tokens": MAX_BATCHED_TOKENS}


def _as_vllm(llm: Any, params: Any) -> Generate:
    def generate(prompts: Prompts, new: int) -> list[int]:
        asked = params(max_tokens=new, ignore_eos=True, temperature=0.0)
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], asked, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]

    return generate


def openvino(model: str, longest: int, at_once: int) -> Generate:
    import numpy as np
    import openvino as ov  # pyright: ignore
    import openvino_genai as genai  # pyright: ignore

    scheduler = genai.SchedulerConfig()
    for name, value in {**_limits(at_once), "cache_size": 4, "dynamic_split_fuse": True}.items():
        setattr(scheduler, name, value)
    scheduler.enable_prefix_caching = True
    pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU")

    def generate(prompts: Prompts, new: int) -> list[int]:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new, True, False
        tensors = [ov.Tensor(np.array([ids], dtype=np.int64)) for ids in prompts]
        results = pipeline.generate(tensors, [config] * len(prompts))
        return [len(result.m_generation_ids[0]) for result in results]

    return generate


ENGINES: dict[str, Open] = {"octavo": octavo, "vllm": vllm, "openvino": openvino}


def prompts(batch: int, length: int, seed: str) -> Prompts:
    rng = random.Random(seed)
    return [[rng.randrange(100, 40_000) for _ in range(length)] for _ in range(batch)]


def timed(generate: Generate, asked: Prompts, new: int) -> float:
    """Raises ValueError where not just so many tokens came."""
    began = time.perf_counter()
    lengths = generate(asked, new)
    took = time.perf_counter() - began
    if lengths != [new] * len(asked):
        raise ValueError(f"{new} tokens were asked of each of {len(asked)} prompts, and {sorted(set(lengths))} came")
    return took


def measure(generate: Generate, batch: int, length: int, new: int, rounds: int) -> dict[str, Any]:
    timed(generate, prompts(batch, 16, "warm"), 4)
    seconds: dict[str, list[float]] = {"first_s": [], "again_s": [], "full_s": []}
    for number in range(rounds):
        asked = prompts(batch, length, f"{batch} of {length}, {number}")
        for name, count in (("first_s", 1), ("again_s", 1), ("full_s", new + 1)):
            seconds[name].append(timed(generate, asked, count))
    return {"batch": batch, "prompt": length, "new": new, **seconds}


def main() -> None:
    asked = json.loads(sys.argv[1])
    works = asked["works"]
    longest = max(length + new + 1 for _, length, new, _ in works)
    at_once = asked.get("at_once") or max(batch for batch, *_ in works)
    began = time.perf_counter()
    generate = ENGINES[asked["engine"]](asked["model"], longest, at_once, **asked.get("options", {}))
    load_s = time.perf_counter() - began
    timed(generate, prompts(1, min(256, longest - 8), "warm"), 8)
    for batch, length, new, rounds in works:
        figure = measure(generate, batch, length, new, rounds)
        print(json.dumps({"engine": asked["engine"], "load_s": load_s, **figure}), flush=True)


if __name__ == "__main__":
    main()
