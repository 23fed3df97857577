"""Makes embeddings.json: pooled hidden states of the default model, for tests/models/test_embeddings.py.

    pip install torch==2.13.0 transformers==5.24.0 gguf accelerate
    python -m tests.golden.make_embeddings MODEL.gguf > tests/golden/embeddings.json

Transformers reads the weights dequantised to float32. Vectors are float32, little-endian, in base64: the mean of
`last_hidden_state` over all tokens (summed in float64), and its last row, neither normalised.
"""

import base64
import json
import sys
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).with_name("smollm2.json")
TEXTS = ("What is the capital of France?", "Why is the sky blue?", "The quick brown fox", "1, 2, 3, 4,")
LONG = (33, 256, 600)
"""Tokens of the perplexity text: more than a block, a chunk of rows of the native program, and more than that."""


def prompts() -> list[list[int]]:
    """One token, short ones, long ones."""
    golden = json.loads(GOLDEN.read_text("utf-8"))
    short = [entry["prompt_token_ids"] for entry in golden["greedy"] if entry["text"] in TEXTS]
    text = golden["perplexity"]["token_ids"]
    return [text[:1], *short, *(text[:count] for count in LONG)]


def main(path: Path) -> None:
    import torch
    from transformers import AutoModel

    torch.set_grad_enabled(False)
    model = AutoModel.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()

    def packed(vector: Any) -> str:
        return base64.b64encode(vector.to(torch.float32).numpy().astype("<f4").tobytes()).decode()

    every = []
    for ids in prompts():
        hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        vectors = {"mean": packed(hidden.double().mean(0)), "last": packed(hidden[-1])}
        every.append({"prompt_token_ids": ids, **vectors})
    sys.stdout.write("[\n" + ",\n".join(json.dumps(each, separators=(",", ":")) for each in every) + "\n]\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
