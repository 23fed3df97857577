"""Runs lm_eval as a script does, and prints scores and samples as JSON: lm_eval_client.py '[{"model": ..., ...}, ...]'

A run has `model` and `model_args` as on lm_eval's command line, `tasks`, `chat` where the model's chat template is
applied, and `limit` where only so many documents are asked about. The tasks are those beside this folder.
"""

import json
import sys
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

TASKS = Path(__file__).parents[1] / "tasks"


def evaluate(
    model: str, model_args: dict[str, Any], tasks: list[str], chat: bool = False, limit: int | None = None
) -> dict[str, Any]:
    found = simple_evaluate(
        model,
        model_args,
        tasks=tasks,
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        apply_chat_template=chat,
        limit=limit,
        bootstrap_iters=0,
    )
    scores = {task: numbers(metrics) for task, metrics in found["results"].items()}
    return {"scores": scores, "samples": {task: answers(samples) for task, samples in found["samples"].items()}}


def numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """The metrics without what only describes them: `acc,none` is the metric acc without a filter."""
    return {name.split(",")[0]: value for name, value in metrics.items() if type(value) is float}


def answers(samples: list[dict[str, Any]]) -> list[Any]:
    """What the model answered to each document, in their order: loglikelihoods and whether greedy, or texts."""
    return [[each[0] for each in sample["resps"]] for sample in sorted(samples, key=lambda sample: sample["doc_id"])]


if __name__ == "__main__":
    print(json.dumps([evaluate(**run) for run in json.loads(sys.argv[1])]))
