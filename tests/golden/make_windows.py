"""Makes windows.json: what Transformers answers on tiny random models with sliding windows, to be run by hand.

    pip install torch==2.13.0 transformers && python -m tests.golden.make_windows > tests/golden/windows.json

The models are those of `tests.tiny`: the seed gives the weights, and their digest stands beside the answers.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]
from transformers import AutoModelForCausalLM  # type: ignore[import-not-found]

from tests.golden.windowed import CASES, Windowed

NUM_GENERATED = 24


def answers(case: Windowed, folder: Path) -> dict[str, Any]:
    """Greedy tokens after the prompt, and the logprob of each token of both, from one look at the whole text."""
    case.write(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokens = list(case.prompt)
    for _ in range(NUM_GENERATED):
        tokens.append(int(logits_of(model, tokens)[-1].argmax()))
    logits = logits_of(model, tokens)
    logprobs = torch.log_softmax(logits, dim=-1)
    best = logits.topk(2, dim=-1).values
    return {
        "name": case.name,
        "weights_sha256": case.digest(),
        "token_ids": tokens,
        "logprobs": [round(float(logprobs[i, token]), 6) for i, token in enumerate(tokens[1:])],
        "top2_gap": [round(float(gap), 6) for gap in best[:-1, 0] - best[:-1, 1]],
    }


def logits_of(model: Any, tokens: list[int]) -> Any:
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0]


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        made = [answers(case, Path(scratch) / case.name) for case in CASES]
    json.dump(made, sys.stdout)
    print()


if __name__ == "__main__":
    main()
