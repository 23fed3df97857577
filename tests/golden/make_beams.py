"""Makes beams.json: what Transformers' beam search finds, with every option, for tests/core/test_beams.py.

    pip install torch==2.13.0 transformers==5.24.0 && python -m tests.golden.make_beams > tests/golden/beams.json

The model is a table: its logits are a function of the generated tokens, so whoever reads the file needs no torch.
"""

import json
import math
import random
import sys
from collections.abc import Sequence
from typing import Any

VOCAB = 24
NUM_CASES = 120


def logits_after(seed: int, tokens: Sequence[int]) -> list[float]:
    """What the model says after these generated tokens."""
    draw = random.Random(f"{seed} {list(tokens)}")
    return [draw.uniform(-4, 4) for _ in range(VOCAB)]


def logprobs_after(seed: int, tokens: Sequence[int]) -> list[tuple[int, float]]:
    """All tokens with their logprobs, best first."""
    logits = logits_after(seed, tokens)
    total = math.log(sum(map(math.exp, logits)))
    return sorted(enumerate(logit - total for logit in logits), key=lambda pair: -pair[1])


def cases() -> list[dict[str, Any]]:
    draw = random.Random(0)
    return [
        {
            "seed": seed,
            "width": draw.randint(2, 5),
            "max_tokens": draw.randint(3, 14),
            "min_tokens": draw.choice([0, 0, 3]),
            "stop_ids": draw.sample(range(VOCAB), draw.randint(1, 4)),
            "length_penalty": draw.choice([-1.0, 0.0, 0.5, 1.0, 2.0]),
            "early_stopping": draw.choice([True, False, "never"]),
        }
        for seed in range(NUM_CASES)
    ]


def found_by_transformers(case: dict[str, Any]) -> list[dict[str, Any]]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_outputs import CausalLMOutputWithPast

    class Table(LlamaForCausalLM):
        def forward(self, input_ids: Any, **_: Any) -> Any:
            rows = [logits_after(case["seed"], row[1:]) for row in input_ids.tolist()]
            return CausalLMOutputWithPast(logits=torch.tensor(rows, dtype=torch.float32)[:, None])

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    prompt = torch.tensor([[0]])
    output: Any = Table(LlamaConfig(vocab_size=VOCAB, **sizes)).generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        use_cache=False,
        do_sample=False,
        num_beams=case["width"],
        num_return_sequences=case["width"],
        max_new_tokens=case["max_tokens"],
        min_new_tokens=case["min_tokens"] or None,
        eos_token_id=case["stop_ids"],
        pad_token_id=case["stop_ids"][0],
        length_penalty=case["length_penalty"],
        early_stopping=case["early_stopping"],
        output_scores=True,
        return_dict_in_generate=True,
    )
    return [
        {"token_ids": ended(sequence[1:].tolist(), case), "score": round(score.item(), 5)}
        for sequence, score in zip(output.sequences, output.sequences_scores, strict=True)
    ]


def ended(tokens: list[int], case: dict[str, Any]) -> list[int]:
    """Without the filling after the token that ended it. Before `min_tokens` none is such a token."""
    first = next((i for i, token in enumerate(tokens) if token in case["stop_ids"] and i >= case["min_tokens"]), None)
    return tokens if first is None else tokens[: first + 1]


def main() -> None:
    every = [{**case, "beams": found_by_transformers(case)} for case in cases()]
    sys.stdout.write("[\n" + ",\n".join(json.dumps(each, separators=(",", ":")) for each in every) + "\n]\n")


if __name__ == "__main__":
    main()
