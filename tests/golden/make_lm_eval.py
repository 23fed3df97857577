"""Makes lm_eval.json: what lm_eval finds with Transformers on the default model in float32, to be run by hand.

    pip install torch==2.13.0 transformers==5.24.0 gguf 'lm_eval[api,hf]==0.4.13'
    python -m tests.golden.make_lm_eval MODEL.gguf > tests/golden/lm_eval.json

MODEL.gguf is the default model's file; Transformers dequantises it. The tasks are those of tests/clients/tasks.
"""

import json
import sys
import tempfile
from pathlib import Path

from tests.clients.programs.lm_eval_client import evaluate

MAX_LENGTH = 126
"""Short, so that a document is longer. lm_eval's API models keep two places free: there it is 128."""
PLAIN = ["octavo_facts", "octavo_prose", "octavo_questions"]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "model.gguf").symlink_to(Path(sys.argv[1]).resolve())
        model = {"pretrained": folder, "gguf_file": "model.gguf", "dtype": "float32", "max_length": MAX_LENGTH}
        found = {
            "plain": evaluate("hf", {**model, "device": "cpu", "batch_size": 1}, PLAIN),
            "chat": evaluate("hf", {**model, "device": "cpu", "batch_size": 1}, PLAIN[2:], chat=True),
        }
    json.dump(found, sys.stdout, separators=(",", ":"))
    print()


if __name__ == "__main__":
    main()
