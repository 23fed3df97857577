"""`octavo doctor --cold-start`: what is measured of a real start, and the probes that follow from it."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.cli import COMMANDS, FAILED, OK, _flags, build_parser, main, normalise, parse
from octavo.config.sources import resolve
from octavo.tools import cold_start
from octavo.tools.cold_start import LEAST_S, MARGIN, READY, STARTING, Start, probes, serve_words, table
from tests.tools.conftest import SMALL

Capture = pytest.CaptureFixture[str]
SECONDS = st.floats(0.05, 3000)


def start_of(ready_s: float, slowest_answer_s: float = 0.01) -> Start:
    return Start(((STARTING, 0.0), ("packing weights", ready_s / 2), (READY, ready_s)), ready_s * 1.1, slowest_answer_s)


@given(st.lists(SECONDS, min_size=1), st.floats(0, 3))
def test_probes_wait_for_several_times_the_slowest_start(seconds: list[float], answer_s: float) -> None:
    found = probes([start_of(ready_s, answer_s) for ready_s in seconds])
    startup = found["startup"]
    budget_s = startup["periodSeconds"] * startup["failureThreshold"]
    assert max(LEAST_S, MARGIN * max(seconds)) <= budget_s <= max(LEAST_S, MARGIN * max(seconds)) + 10
    assert startup["periodSeconds"] <= max(1, max(seconds) / 10)
    assert all(10 * answer_s <= probe["timeoutSeconds"] for probe in found.values())


def test_stages_add_up() -> None:
    start = Start((("a", 0.0), ("b", 1.0), ("c", 3.0), (READY, 3.5)), 4.0, 0.0)
    assert start.lengths == {"a": 1.0, "b": 2.0, "c": 0.5} and start.ready_s == 3.5


def test_a_stage_that_was_too_short_to_be_seen_has_no_number() -> None:
    rows = list(table([start_of(2.0), Start(((STARTING, 0.0), (READY, 1.0)), 1.5, 0.0)]))
    packing = next(row for row in rows if "packing" in row)
    assert packing.split() == ["packing", "weights", "1.00"]
    assert rows[-2:] == [f"{'  ready after':35}     2.00     1.00", f"{'  first token after':35}     2.20     1.50"]


@pytest.mark.parametrize(
    "words",
    [
        ["a model.gguf", "--max-model-len", "auto", "--gpu-memory-utilization", "0.5"],
        ["--served-model-name", "a,b", "--served-model-name", '["c, d"]', "--no-enable-prefix-caching", "--strict"],
        ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}', "--kv-cache-memory-bytes", "1GiB"],
    ],
)
def test_the_server_is_started_with_the_flags_of_the_command(words: list[str]) -> None:
    def resolved(command: str, words: list[str]):
        parser = build_parser(command, COMMANDS[command])
        return resolve(_flags(COMMANDS[command], parse(parser, normalise(words))), environment={})

    asked = resolved("doctor", words)
    assert resolved("serve", serve_words(asked, None)).config == asked.config


def test_keys_and_addresses_of_the_user_are_not_the_measured_servers() -> None:
    asked = resolve({"api_key": "secret", "host": "0.0.0.0", "port": "80", "max_num_seqs": "3"}, environment={})
    assert serve_words(asked, "octavo.yaml") == ["--max-num-seqs=3", "--config", "octavo.yaml"]


def test_a_start_is_measured_to_its_first_token(
    tiny_gguf: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_start, "NUM_STARTS", 1)
    monkeypatch.setenv("OCTAVO_API_KEY", "mine")
    assert main(["doctor", "--cold-start", "--json", str(tiny_gguf), *SMALL]) == OK
    found = json.loads(capsys.readouterr().out)
    (start,) = found["starts"]
    assert sum(start["stages_s"].values()) == pytest.approx(start["ready_s"])
    assert 0 < start["ready_s"] < start["first_token_s"] and STARTING in start["stages_s"]
    assert found["model"] == "tiny" and found["values"]["probes"].keys() == {"startup", "liveness", "readiness"}


def test_a_server_that_cannot_start_is_told_in_its_own_words(tiny_gguf: Path, capsys: Capture) -> None:
    words = ["--backend", "reference", "--num-blocks", "1", "--max-model-len", "64"]
    assert main(["doctor", "--cold-start", str(tiny_gguf), *words]) == FAILED
    captured = capsys.readouterr()
    assert captured.out == "" and "or raise num_blocks" in captured.err.splitlines()[-1]
