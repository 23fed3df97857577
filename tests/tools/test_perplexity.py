"""`octavo doctor --perplexity`: each token is predicted once, and the figures are those of the model."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.cli import OK, USAGE, main
from octavo.config.sources import from_keywords
from octavo.tools.partner import open_partner
from octavo.tools.perplexity import Reading, as_text, is_news, read, windows
from octavo.tools.terminal import ignore

Capture = pytest.CaptureFixture[str]
TEXT = "The quick brown fox jumps over the lazy dog, and the dog does not mind. " * 3
CPU = ("--num-blocks", "32", "--num-threads", "1")


@given(st.integers(2, 40), st.integers(2, 9), st.booleans())
def test_each_token_is_predicted_once_from_those_before_it_in_its_window(count: int, size: int, with_bos: bool):
    ids = list(range(count))
    parts = list(windows(ids, size, [-1] if with_bos else []))
    assert [token for part in parts for token in part[1:]] == (ids if with_bos else ids[1:])
    assert all(2 <= len(part) <= size for part in parts)
    assert all(part[0] == (-1 if with_bos else part[1] - 1) for part in parts)
    assert all(part[1:] == list(range(part[1], part[1] + len(part) - 1)) for part in parts)


@given(st.integers(1, 300))
def test_a_person_is_told_at_the_beginning_and_at_most_ten_times(count: int):
    told = [number for number in range(count) if is_news(number, count)]
    assert told[0] == 0 and len(told) == min(count, 10)


def test_the_mean_is_over_all_windows_by_the_model_s_own_logprobs(tiny_gguf: Path):
    """A context of 33 makes several windows of 32."""
    config = from_keywords(model=str(tiny_gguf), backend="reference", num_blocks=64, max_model_len=33)
    told: list[str] = []
    found = read(config, TEXT, told.append)
    with open_partner(config) as (partner, _):
        ids = partner.encode(TEXT)
        scored = [each for part in windows(ids, 32) for each in partner.score(part)]
    assert found.window == 32 and found.num_predicted == len(ids) - 1 == len(scored)
    assert found.nll == pytest.approx(-sum(each.logprob for each in scored) / len(scored), abs=1e-12)
    assert found.best == tuple(each.best for each in scored)
    assert found.perplexity == math.exp(found.nll)
    assert len(told) == math.ceil((len(ids) - 1) / 31) and told[-1].endswith(f"window {len(told)} of {len(told)}")


def test_settings_and_the_baseline_are_what_is_measured(tiny_gguf: Path, tmp_path: Path, capsys: Capture):
    text = tmp_path / "text"
    text.write_text(TEXT)
    flags = ["--quantization", "int4", "--kv-cache-dtype", "int8", *CPU]
    assert main(["doctor", str(tiny_gguf), "--perplexity", str(text), "--baseline", "--json", *flags]) == OK
    found = json.loads(capsys.readouterr().out)
    reading, baseline = found["reading"], found["baseline"]
    assert (reading["weight_format"], reading["kv_cache_dtype"]) == ("F32-int4", "int8")
    assert (baseline["weight_format"], baseline["kv_cache_dtype"]) == ("F32", "float32")
    assert reading["nll"] != baseline["nll"] and found["nll_ratio"] == reading["nll"] / baseline["nll"]
    assert 0 < found["top1_agreement"] <= 1
    exact = read(from_keywords(model=str(tiny_gguf), backend="reference", num_blocks=64), TEXT, ignore)
    assert baseline["nll"] == pytest.approx(exact.nll, abs=1e-5)


def test_a_person_reads_lines():
    told = (("int8", 2.02, (1, 2, 3, 4)), ("float32", 2.0, (1, 2, 3, 5)))
    readings = [Reading("Q4_1", kv, "avx2", 513, 2048, nll, best) for kv, nll, best in told]
    assert as_text("tiny", readings).splitlines() == [
        "tiny: 2,048 tokens predicted, in windows of 513",
        "  Q4_1, KV int8 (avx2): NLL 2.0200, perplexity 7.538",
        "  Q4_1, KV float32 (avx2): NLL 2.0000, perplexity 7.389",
        "  against float32: NLL +1.00 %, perplexity +2.02 %, top-1 agreement 75.00%",
    ]


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot read"), (b"\xff\xfe", "cannot read"), (b"", "nothing to predict")]
)
def test_what_is_no_text_is_refused(
    content: bytes | None, message: str, tiny_gguf: Path, tmp_path: Path, capsys: Capture
):
    text = tmp_path / "text"
    if content is not None:
        text.write_bytes(content)
    assert main(["doctor", str(tiny_gguf), "--perplexity", str(text), *CPU]) == USAGE
    assert message in capsys.readouterr().err
