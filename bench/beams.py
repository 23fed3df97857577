"""What beam search costs beside sampling as many choices, on the default model. `python bench/beams.py [--width 4]`.

Both compute a prompt once and then as many tokens a step. CPU time of the whole process with one thread of kernels, so
that a busy machine shows little; the best of several runs, taken in turns.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass

from octavo import LLM, SamplingParams

PROMPT = "Once upon a time, in a village by the sea, there lived a fisherman who"
TARGET = 1.3


@dataclass(frozen=True)
class Measured:
    width: int
    num_tokens: int
    sampling_s: float
    beams_s: float

    @property
    def ratio(self) -> float:
        return self.beams_s / self.sampling_s


def cpu_s(llm: LLM, params: SamplingParams) -> float:
    start = time.process_time()
    (output,) = llm.generate(PROMPT, params, use_tqdm=False)
    elapsed_s = time.process_time() - start
    assert all(len(choice.token_ids) == params.max_tokens for choice in output.outputs)
    return elapsed_s


def measure(llm: LLM, width: int, num_tokens: int, num_runs: int) -> Measured:
    """`ignore_eos`: so that each choice, and each beam, has just as many tokens."""
    sampling = SamplingParams(n=width, max_tokens=num_tokens, ignore_eos=True, seed=1)
    beams = SamplingParams(n=width, max_tokens=num_tokens, ignore_eos=True, use_beam_search=True)
    pairs = [(cpu_s(llm, sampling), cpu_s(llm, beams)) for _ in range(num_runs)]
    return Measured(width, num_tokens, min(pair[0] for pair in pairs), min(pair[1] for pair in pairs))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with LLM(num_threads=1, max_model_len=1024, max_num_seqs=max(16, options.width)) as llm:
        found = measure(llm, options.width, options.tokens, options.runs)
    if options.json:
        json.dump({**asdict(found), "ratio": found.ratio}, sys.stdout)
        return 0
    print(f"{found.width} choices of {found.num_tokens} tokens, CPU time of the process:")
    print(f"  sampling     {found.sampling_s:7.3f} s")
    print(f"  beam search  {found.beams_s:7.3f} s   {found.ratio:.2f} x (target: below {TARGET} x)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
