"""Sections that compare throughput: what engines print becomes figures, and figures become ratios."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.report import context, driver, peers, shapes
from bench.report.installed import NotInstalled, llama_program, model
from bench.report.section import Figure
from bench.report.shown import Work
from bench.report.throughput import Job, drive, rates, read_batched

BATCHED = """\

{"n_kv_max": 2048, "n_batch": 2048, "n_ubatch": 512, "flash_attn": 1, "is_pp_shared": 0, "n_gpu_layers": -1, \
"n_threads": 2, "n_threads_batch": 2, "pp": 64, "tg": 8, "pl": 8, "n_kv": 576, "t_pp": 3.279641, \
"speed_pp": 156.114655, "t_tg": 2.220076, "speed_tg": 28.827841, "t": 5.499717, "speed": 104.732666}

"""


def figure(engine: str, weights: str, batch: int, prefill: float, decode: float, prompt: int = 256) -> Figure:
    """Of an engine that reached these rates."""
    work = {"engine": engine, "weights": weights, "batch": batch, "prompt": prompt, "new": 128}
    seconds = {"first_s": [batch * prompt / prefill], "again_s": [0.5], "full_s": [0.5 + batch * 128 / decode]}
    return work | seconds


def test_llama_batched_bench_is_read() -> None:
    assert list(read_batched("Q4_0", BATCHED.splitlines())) == [
        {
            "engine": "llama.cpp",
            "weights": "Q4_0",
            "batch": 8,
            "prompt": 64,
            "new": 8,
            "first_s": [3.279641],
            "decode_s": [2.220076],
        }
    ]


def test_rates_are_those_that_llama_batched_bench_gives_itself() -> None:
    (rate,) = rates(read_batched("Q4_0", BATCHED.splitlines()))
    assert (rate.prefill, rate.decode) == (pytest.approx(156.114655), pytest.approx(28.827841))


def test_a_rate_is_the_best_of_all_rounds_and_decode_is_what_comes_after_the_first_token() -> None:
    work: dict[str, Any] = {"engine": "e", "weights": "w", "batch": 2, "prompt": 100, "new": 10}
    (rate,) = rates(
        [
            work | {"first_s": [1.0, 0.5], "again_s": [0.5, 0.6], "full_s": [3.0, 4.0]},
            work | {"first_s": [2.0], "again_s": [0.7], "full_s": [2.5]},
        ]
    )
    assert (rate.prefill, rate.decode) == (2 * 100 / 0.5, 2 * 10 / (2.5 - 0.5))
    (apart,) = rates([work | {"first_s": [0.5], "decode_s": [4.0]}, work | {"first_s": [1.0], "decode_s": [2.0]}])
    assert (apart.prefill, apart.decode) == (2 * 100 / 0.5, 2 * 10 / 2.0)


def test_what_noise_hides_is_no_rate_and_no_claim_is_met_by_it() -> None:
    work: dict[str, Any] = {"weights": "Q4_1", "batch": 8, "prompt": 4096, "new": 32}
    hidden = work | {"engine": "octavo", "first_s": [9.0], "again_s": [8.5], "full_s": [8.0]}
    other = work | {"engine": "one", "first_s": [9.0], "decode_s": [2.0]}
    assert [rate.decode for rate in rates([hidden, other])] == [None, 128.0]
    (claim,) = context.show([hidden, other]).claims
    assert claim.target.verdict(claim.value) == "not measured"


def test_a_round_asks_prompts_that_are_new_and_then_the_same_ones_again() -> None:
    asked: list[tuple[str, int]] = []

    def generate(prompts: list[list[int]], new: int) -> list[int]:
        asked.append((str(prompts), new))
        return [new] * len(prompts)

    found = driver.measure(generate, 3, 20, 5, rounds=2)
    warm, *rounds = asked
    assert warm[1] == 4 and [new for _, new in rounds] == [1, 1, 6, 1, 1, 6]
    assert [len({prompts for prompts, _ in part}) for part in (rounds[:3], rounds[3:], rounds)] == [1, 1, 2]
    assert {name: found[name] for name in ("batch", "prompt", "new")} == {"batch": 3, "prompt": 20, "new": 5}
    assert [len(found[name]) for name in ("first_s", "again_s", "full_s")] == [2, 2, 2]


def test_a_wrong_number_of_tokens_is_no_figure() -> None:
    with pytest.raises(ValueError, match="5 tokens were asked of each of 2 prompts, and \\[4\\] came"):
        driver.timed(lambda prompts, _: [4] * len(prompts), [[1], [2]], 5)


def test_no_prompt_is_asked_twice_and_the_same_words_make_the_same_prompts() -> None:
    assert driver.prompts(2, 8, "a") == driver.prompts(2, 8, "a") != driver.prompts(2, 8, "b")
    first, second = driver.prompts(2, 8, "a")
    assert first != second and len(first) == 8


def test_octavo_is_driven_in_a_process_of_its_own(default_model: Path) -> None:
    (found,) = drive("octavo", "Q4_1", default_model, [Job(2, 16, 4, 2)])
    assert (found["engine"], found["weights"], found["batch"], len(found["full_s"])) == ("octavo", "Q4_1", 2, 2)
    (rate,) = rates([found])
    assert rate.prefill > 0 and rate.decode > 0


def test_what_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotInstalled, match=r"smollm2-q4_0\.gguf is not in"):
        model(tmp_path, "Q4_0")
    with pytest.raises(NotInstalled, match="llama-server is not in llamacpp/"):
        llama_program(tmp_path, "llama-server")


def test_the_opponent_is_the_best_variant_for_each_row() -> None:
    seen = peers.show(
        [
            figure("octavo", "Q4_1", 1, 100.0, 40.0),
            figure("octavo", "Q4_1, int8 KV", 1, 96.0, 44.0),
            figure("octavo", "BF16", 1, 90.0, 8.0),
            figure("one", "Q4_0", 1, 50.0, 10.0),
            figure("one", "Q8_0", 1, 40.0, 20.0),
            figure("two", "BF16", 1, 80.0, 5.0),
            figure("two", "BF16", 8, 90.0, 50.0),
        ]
    )
    own, int8, bf16, *_ = seen.tables
    rows = {(row[0], row[1]): row[2:] for row in own.rows}
    assert rows["prefill", 1] == pytest.approx([100.0, 80.0, "two BF16", 1.25])
    assert rows["decode", 1] == pytest.approx([40.0, 20.0, "one Q8_0", 2.0])
    assert rows["decode", 8][0] is None and rows["decode", 8][2:] == ["two BF16", None]
    assert {(row[0], row[1]): row[-1] for row in int8.rows}["decode", 1] == pytest.approx(2.2)
    assert {(row[0], row[1]): row[-1] for row in bf16.rows}["decode", 1] == pytest.approx(1.6)
    assert next(claim.value for claim in seen.claims if claim.what == "decode, 1 at once") == pytest.approx(2.0)


def test_each_format_of_each_engine_is_shown() -> None:
    figures = [
        figure("octavo", "Q4_1", 4, 1.0, 2.0),
        figure("one", "Q4_0", 4, 3.0, 4.0),
        figure("one", "Q8_0", 1, 5.0, 6.0),
    ]
    *_, prefill, decode = peers.show(figures).tables
    assert [row[0] for row in decode.rows] == ["octavo Q4_1", "one Q4_0", "one Q8_0"]
    place = 1 + peers.BATCHES.index(4)
    assert [row[place] for row in decode.rows] == pytest.approx([2.0, 4.0, None])
    assert [row[place] for row in prefill.rows] == pytest.approx([1.0, 3.0, None])


def test_claims_are_the_ratios_of_the_targets() -> None:
    figures = [
        figure(engine, weights, batch, rate, rate)
        for engine, weights, rate in (("octavo", "Q4_1", 20.0), ("octavo", "BF16", 12.0), ("one", "BF16", 8.0))
        for batch in peers.BATCHES
    ]
    claims = {claim.what: claim for claim in peers.show(figures).claims}
    alone, batched = claims["decode, 1 at once"], claims["decode, 64 at once"]
    assert (alone.value, alone.target.bound, alone.work) == (pytest.approx(2.5), 1.5, Work("default", "decode", 1, 256))
    assert (batched.value, batched.target.bound) == (pytest.approx(2.5), 2.5)
    bf16 = claims["bf16 weights, prefill, 8 at once"]
    assert (bf16.value, bf16.target.bound, bf16.work) == (pytest.approx(1.5), 1.5, Work("bf16", "prefill", 8, 256))


def test_contexts_are_compared_where_both_were_measured() -> None:
    figures = [figure("octavo", "Q4_1", 8, 1.0, 9.0, 4096), figure("one", "Q4_0", 8, 1.0, 3.0, 4096)]
    figures.append(figure("octavo", "Q4_1", 1, 1.0, 5.0, 1024))
    seen = context.show(figures)
    rows = {(row[0], row[1]): row[2:] for row in seen.tables[0].rows}
    assert rows["decode, 8 at once", 4096] == pytest.approx([9.0, 3.0, 3.0])
    assert rows["decode, 1 at once", 1024] == [pytest.approx(5.0), None, None]
    assert [(claim.value, claim.work) for claim in seen.claims] == [
        (pytest.approx(3.0), Work("default", "decode", 8, 4096))
    ]
    assert seen.plots[0].series["octavo Q4_1"] == pytest.approx((None, None, 9.0, None))


def test_shapes_are_compared_each_with_itself() -> None:
    figures = [
        figure("octavo", "Q4_0", 8, 1.0, 6.0, 64) | {"shape": "0.5b"},
        figure("llama.cpp", "Q4_0", 8, 1.0, 2.0, 64) | {"shape": "0.5b"},
        figure("llama.cpp", "Q4_0", 8, 1.0, 1.0, 64) | {"shape": "1b"},
    ]
    claims = {claim.what: claim.value for claim in shapes.show(figures).claims}
    assert claims["shape of 0.5b, decode, 8 at once, to llama.cpp"] == pytest.approx(3.0)
    assert claims["shape of 1b, decode, 8 at once, to llama.cpp"] is None


def test_figures_are_json() -> None:
    assert json.loads(json.dumps(list(read_batched("Q4_0", BATCHED.splitlines())))) == list(
        read_batched("Q4_0", BATCHED.splitlines())
    )


OTHER = """\
import importlib.util
from types import SimpleNamespace

assert importlib.util.find_spec("kernels") is None and importlib.util.find_spec("section") is None


def SamplingParams(max_tokens, **rest):
    return max_tokens


class LLM:
    def __init__(self, model, **rest):
        pass

    def generate(self, prompts, new, use_tqdm):
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[0] * new)]) for _ in prompts]
"""


def test_what_lies_beside_the_driver_is_not_what_an_engine_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine looks for packages that may be there, such as `kernels`; a section of the report is none."""
    (tmp_path / "vllm.py").write_text(OTHER)
    python = tmp_path / "vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (figure,) = drive("vllm", "BF16", tmp_path, [Job(2, 16, 4)], tmp_path)
    assert (figure["engine"], figure["batch"], figure["new"]) == ("vLLM", 2, 4)
