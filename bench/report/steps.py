"""Section: whole steps beside the machine's limits, from `octavo profile step`."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.report import context, peers, served, shapes
from bench.report.processes import lines_of
from bench.report.section import Conditions, Figure, Section, attempted
from bench.report.shown import Cell, Claim, Column, Shown, Table, Target, Work
from bench.report.subjects import BF16, DEFAULT, RANDOM, path_of

ATTENTION = Work(DEFAULT, "decode", 8, 4096)
"""Where attention has a target of its own."""
TARGET = Target(60, " %")
_KINDS = {"prompt": "prefill", "decode": "decode"}


def works(subject: str) -> list[tuple[int, int, int]]:
    """Requests at once, tokens of a prompt, and tokens before the first decode step: where there are targets."""
    if subject in RANDOM:
        return [(batch, shapes.PROMPT, shapes.PROMPT) for batch in shapes.LEAST]
    own = [(batch, peers.PROMPT, peers.PROMPT) for batch in peers.BATCHES]
    if subject == DEFAULT:
        own += [(batch, peers.PROMPT, ATTENTION.context) for batch in context.BATCHES]
    return own


def _measure(conditions: Conditions) -> Iterator[Figure]:
    for subject in (DEFAULT, *((BF16, *RANDOM) if conditions.peers is not None else ())):
        for batch, prompt, before in works(subject):
            what = f"{subject}, {batch} at once behind {before:,}"
            yield from attempted(what, lambda s=subject, w=(batch, prompt, before): [_profile(s, conditions, *w)])


def _profile(subject: str, conditions: Conditions, batch: int, prompt: int, before: int) -> Figure:
    words = ["--batch", str(batch), "--prompt-len", str(prompt), "--context", str(before), "--json"]
    command = [sys.executable, "-m", "octavo", "profile", "step", str(path_of(subject, conditions)), *words]
    return {"subject": subject, **json.loads("".join(lines_of(command, dict(os.environ))))}


# -- what is shown ---------------------------------------------------------------------------------------------------


def show(figures: list[Figure]) -> Shown:
    columns = (
        Column("weights"),
        Column("steps"),
        Column("requests", 0),
        Column("ms a step", 2),
        Column("ms at the limit", 2),
        Column("tokens/s", 0),
        Column("% of the limit", 0),
        Column("% outside kernels", 1),
        Column("loses most in"),
    )
    pairs = [(figure, steps) for figure in figures for steps in figure["profiles"] if _is_new(figure, steps)]
    limits = {work_of(*pair): limit_words(pair[1]) for pair in pairs}
    limits |= served_limit({work_of(*pair): limit_rate(pair[1]) for pair in pairs})
    return Shown((Table(columns, [row_of(*pair) for pair in pairs]),), tuple(_claims(pairs)), limits=limits)


def _is_new(figure: Figure, steps: dict[str, Any]) -> bool:
    """Behind a long context prompts are what they are behind a short one."""
    return steps["name"] == "decode" or figure["context"] == figure["prompt_len"]


def work_of(figure: Figure, steps: dict[str, Any]) -> Work:
    kind = _KINDS[steps["name"]]
    length = figure["context"] if kind == "decode" else figure["prompt_len"]
    return Work(figure["subject"], kind, figure["batch"], length)


def worst(steps: dict[str, Any]) -> str:
    """The kernel that is furthest from its limit, in time."""
    kernels = [row for row in steps["rows"] if row["is_kernel"]]
    return max(kernels, key=lambda row: row["time_s"] - row["limit_s"])["name"]


def limit_rate(steps: dict[str, Any]) -> float:
    """Tokens a second, were each kernel at its limit."""
    return steps["num_tokens"] / steps["limit_s"]


def limit_words(steps: dict[str, Any]) -> str:
    share = steps["limit_s"] / steps["step_s"]
    return f"{share:.0%} of {limit_rate(steps):,.0f} tokens/s; loses most in {worst(steps)}"


def served_limit(rates: Mapping[Work, float]) -> dict[Work, str]:
    """Of a load where as many prompts as clients, and then their answers, are computed at their own limits."""
    prompts, answers = (rates.get(Work(DEFAULT, kind, served.CLIENTS, served.PROMPT)) for kind in _KINDS.values())
    if not prompts or not answers:
        return {}
    rate = served.NEW / (served.PROMPT / prompts + served.NEW / answers)
    words = f"{rate:,.0f} tokens/s, with nothing but prompts and decodes of {served.CLIENTS} at their limits"
    return {served.LOAD: words}


def row_of(figure: Figure, steps: dict[str, Any]) -> list[Cell]:
    before = figure["context"] if steps["name"] == "decode" else 0
    outside_s = sum(row["time_s"] for row in steps["rows"] if not row["is_kernel"])
    subject = (
        f"{figure['weight_format']} {figure['subject']}" if figure["subject"] in RANDOM else figure["weight_format"]
    )
    return [
        subject,
        f"{steps['name']} behind {before:,}",
        figure["batch"],
        1e3 * steps["step_s"],
        1e3 * steps["limit_s"],
        steps["num_tokens"] / steps["step_s"],
        100 * steps["limit_s"] / steps["step_s"],
        100 * outside_s / steps["step_s"],
        worst(steps),
    ]


def _claims(pairs: Sequence[tuple[Figure, dict[str, Any]]]) -> Iterator[Claim]:
    """Attention's share of its limit, over its kernels."""
    steps = next((steps for figure, steps in pairs if work_of(figure, steps) == ATTENTION), None)
    rows = [] if steps is None else [row for row in steps["rows"] if row["name"].startswith("attention")]
    time_s = sum(row["time_s"] for row in rows)
    share = 100 * sum(row["limit_s"] for row in rows) / time_s if time_s else None
    what = f"attention of {ATTENTION.batch} requests behind {ATTENTION.context:,} tokens, of its memory limit"
    yield Claim(what, share, TARGET, ATTENTION)


STEPS = Section(
    name="steps",
    title="Steps and the machine's limits",
    about=(
        "A step's time at the limit is what its bytes take at the bandwidth, and its operations at the peak, that "
        "are measured in the same run. `octavo profile step` shows it kernel by kernel."
    ),
    measure=_measure,
    show=show,
)
