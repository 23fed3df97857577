"""Sections about Octavo alone: steps, memory, number formats."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bench.report import formats, memory, steps
from bench.report.section import Conditions
from bench.report.shown import Work
from octavo.cli import main as octavo
from tests.tiny import make_tiny, write_gguf


def test_steps_are_read_from_what_the_profiler_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(write_gguf(make_tiny(), tmp_path / "tiny.gguf"))
    words = ["--prompt-len", "8", "--steps", "2", "--num-blocks", "16", "--json"]
    assert octavo(["profile", "step", model, *words]) == 0
    profile: dict[str, Any] = {"subject": "default", **json.loads(capsys.readouterr().out)}
    seen = steps.show([profile])
    (table,) = seen.tables
    assert [row[:3] for row in table.rows] == [["F32", "prompt behind 0", 1], ["F32", "decode behind 8", 1]]
    names = {row["name"] for each in profile["profiles"] for row in each["rows"] if row["is_kernel"]}
    assert all(row[-1] in names for row in table.rows)
    assert all(isinstance(cell, float) and cell > 0 for row in table.rows for cell in row[3:7])
    assert list(seen.limits) == [Work("default", "prefill", 1, 8), Work("default", "decode", 1, 8)]


def test_attention_is_compared_with_its_own_limit() -> None:
    rows = [
        {"name": "attention x", "is_kernel": True, "time_s": 4.0, "limit_s": 2.0},
        {"name": "product y", "is_kernel": True, "time_s": 2.0, "limit_s": 1.5},
        {"name": "plan", "is_kernel": False, "time_s": 2.0, "limit_s": 0.0},
    ]
    decode = {"name": "decode", "step_s": 8.0, "limit_s": 4.0, "num_tokens": 80.0, "rows": rows}
    figure = {"subject": "default", "weight_format": "Q4_1", "batch": 8, "context": 4096, "prompt_len": 256}
    seen = steps.show([{**figure, "profiles": [decode]}])
    (claim,) = seen.claims
    assert (claim.value, claim.work) == (50.0, steps.ATTENTION)
    assert seen.limits == {steps.ATTENTION: "50% of 20 tokens/s; loses most in attention x"}


def test_every_claim_of_throughput_has_a_step_that_is_measured() -> None:
    """Else its limit could not be told."""
    from bench.report import context, peers, shapes

    claims = [claim for module in (context, peers, shapes) for claim in module.show([]).claims]
    told = {
        Work(subject, kind, batch, length)
        for subject in ("default", "bf16", "0.5b", "1b")
        for batch, prompt, before in steps.works(subject)
        for kind, length in (("prefill", prompt), ("decode", before))
    }
    wanted = {claim.work for claim in claims if claim.work is not None}
    assert len(wanted) == len(claims) and wanted <= told


def test_a_load_is_limited_by_its_prompts_and_its_decodes() -> None:
    """256 tokens at 1,000 a second and 128 at 500 take 0.512 s: 128 answers' tokens in that time."""
    from bench.report import served

    works = {Work("default", "prefill", 16, 256): 1000.0, Work("default", "decode", 16, 256): 500.0}
    limit = steps.served_limit(works)
    assert list(limit) == [served.LOAD] and limit[served.LOAD].startswith("250 tokens/s")
    assert {claim.work for claim in served.show([]).claims} == {None, served.LOAD}
    assert not steps.served_limit({})


def test_blocks_hold_more_requests_than_contiguous_memory() -> None:
    figures = list(memory.MEMORY.measure(Conditions()))
    seen = memory.show(figures)
    (claim,) = seen.claims
    assert claim.value is not None and claim.value >= claim.target.bound
    *paged, contiguous = figures
    assert contiguous["running"] == pytest.approx(memory.NUM_CONTIGUOUS, abs=0.5)
    assert all(each["running"] > 1.5 * contiguous["running"] for each in paged)
    assert all(each["tokens_per_s"] > contiguous["tokens_per_s"] for each in paged)


def test_formats_are_compared_with_the_same_weights_in_float32() -> None:
    nll = math.log(8.0)
    exact = {
        "weight_format": "Q4_1",
        "kv_cache_dtype": "float32",
        "nll": nll,
        "exact_nll": nll,
        "error": 0,
        "top1": 1.0,
    }
    worse = exact | {"kv_cache_dtype": "int8", "nll": nll + math.log(1.01), "error": 0.002, "top1": 0.98}
    seen = formats.show([exact, worse])
    assert [row[3:] for row in seen.tables[0].rows] == [
        pytest.approx([8.0, 0.0, 0.0, 100.0]),
        pytest.approx([8.08, 1.0, 0.2, 98.0]),
    ]
    (claim,) = seen.claims
    assert claim.value == pytest.approx(1.0) and claim.target.verdict(claim.value) == "missed"
    assert claim.note is not None and "0.20 %" in claim.note
