"""`run` and `chat` on a tiny model: the answers are the engine's, whole, in order; and Ctrl-C stops an answer only."""

import contextlib
import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.cli import USAGE, main
from octavo.config import CacheConfig, Config, EngineConfig, ModelConfig
from octavo.engine.outputs import CompletionOutput, RequestOutput, Timing
from octavo.models.catalog import DEFAULT_MODEL
from octavo.tools.chat import COMMANDS, Conversation, plain, talk
from octavo.tools.oneshot import conversation, full_prompt, piped, speed
from octavo.tools.partner import AnswerRefused, Partner, open_partner
from octavo.tools.terminal import Show, ignore
from tests.tools.conftest import SMALL

Capture = pytest.CaptureFixture[str]
GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(scope="module")
def config(tiny_gguf: Path) -> Config:
    return Config(
        model=ModelConfig(model=str(tiny_gguf)),
        cache=CacheConfig(num_blocks=64),
        engine=EngineConfig(backend="reference"),
    )


@pytest.fixture(scope="module")
def llm(tiny_gguf: Path) -> Iterator[LLM]:
    with LLM(model=str(tiny_gguf), backend="reference", num_blocks=64) as llm:
        yield llm


@pytest.fixture
def partner(config: Config) -> Iterator[Partner]:
    with open_partner(config) as (partner, _):
        yield partner


def ask(capsys: Capture, *words: str, stdin: str = "") -> Any:
    assert main(["run", *SMALL, *words]) == 0
    return capsys.readouterr().out


def test_run_prints_the_answer_of_the_offline_engine(llm: LLM, tiny_gguf: Path, capsys: Capture) -> None:
    output = llm.chat(conversation("hello there", None), GREEDY, use_tqdm=False)[0].outputs[0]
    assert len(output.token_ids) == 12
    printed = ask(capsys, "--model", str(tiny_gguf), "--max-tokens", "12", "hello", "there")
    assert printed == output.text.rstrip("\n") + "\n"


def test_run_raw_continues_the_text(llm: LLM, tiny_gguf: Path, capsys: Capture) -> None:
    output = llm.generate("the ring", GREEDY, use_tqdm=False)[0]
    words = ("--raw", "--json", "--model", str(tiny_gguf), "--max-tokens=12", "the ring")
    answer = json.loads(ask(capsys, *words))
    assert all(value > 0 for value in answer.pop("timing").values())
    assert answer == {
        "model": "tiny",
        "text": output.outputs[0].text,
        "finish_reason": output.outputs[0].finish_reason,
        "usage": {"prompt_tokens": len(output.prompt_token_ids), "completion_tokens": 12, "cached_tokens": 0},
    }


def test_a_model_is_called_as_it_was_asked_for(
    tiny_gguf: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not as its file says: that is no name that anyone can send."""
    other = tmp_path / "other.gguf"
    other.write_bytes(tiny_gguf.read_bytes())
    assert json.loads(ask(capsys, "--model", str(other), "--max-tokens=1", "--json", "hi"))["model"] == "other"
    monkeypatch.setenv("OCTAVO_SERVED_MODEL_NAME", "mine")
    assert json.loads(ask(capsys, "--model", str(other), "--max-tokens=1", "--json", "hi"))["model"] == "mine"
    typed = io.StringIO("")
    monkeypatch.setattr(typed, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", typed)
    monkeypatch.setattr("octavo.tools.chat.lines", lambda: iter(()))
    assert main(["chat", *SMALL, str(other)]) == 0
    assert capsys.readouterr().out.startswith("mine, 256 tokens of context")


@pytest.mark.parametrize(
    ("times", "count", "said"),
    [
        ((1.0, 1.25, 3.25), 9, "3 + 9 tokens, the first after 0.25 s, then 4.0 tokens/s"),
        ((1.0, 1.25, 1.25), 1, "3 + 1 tokens, the first after 0.25 s"),
        ((1.0, None, None), 0, "3 + 0 tokens"),
    ],
)
def test_the_speed_is_that_of_the_tokens_after_the_first(
    times: tuple[float | None, ...], count: int, said: str
) -> None:
    choice = CompletionOutput(0, token_ids=[5] * count)
    assert speed(RequestOutput("r", None, [1, 2, 3], [choice], timing=Timing(*times))) == said


def test_run_says_the_speed_on_a_terminal(tiny_gguf: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--model", str(tiny_gguf), "--max-tokens", "4", "--ignore-eos", "hi")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["run", *SMALL, *words]) == 0
    assert " + 4 tokens, the first after " in capsys.readouterr().err


def test_sampling_flags_reach_the_sampler(llm: LLM, tiny_gguf: Path, capsys: Capture) -> None:
    params = SamplingParams(temperature=1.5, top_k=40, top_p=0.9, min_p=0.01, seed=7, max_tokens=9, ignore_eos=True)
    output = llm.chat(conversation("x", "be brief"), params, use_tqdm=False)[0].outputs[0]
    flags = [
        "--temperature",
        "1.5",
        "--top-k",
        "40",
        "--top-p",
        "0.9",
        "--min-p",
        "0.01",
        "--seed",
        "7",
        "--max-tokens",
        "9",
        "--ignore-eos",
    ]
    printed = ask(capsys, "--model", str(tiny_gguf), *flags, "--json", "--system", "be brief", "x")
    assert json.loads(printed)["text"] == output.text


def test_what_is_piped_in_comes_after_the_words() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe:
        pipe.write("a file")
    with os.fdopen(reading) as stdin:
        assert full_prompt(["sum", "up:"], stdin) == "sum up:\n\na file"
    with open(os.devnull) as nothing:
        assert not piped(nothing)
        assert full_prompt(["a"], nothing) == "a"
    assert not piped(io.StringIO("no descriptor"))


def test_a_pipe_is_read_and_a_cut_answer_is_said_to_be_cut(tiny_gguf: Path) -> None:
    command = [sys.executable, "-m", "octavo", "run", *SMALL, "--model", str(tiny_gguf), "--max-tokens", "3"]
    ended = subprocess.run(command, input="hello", capture_output=True, text=True, check=True)
    assert ended.stdout.endswith("\n")
    assert ended.stderr == "octavo: cut off after 3 tokens; --max-tokens N allows more\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there is no prompt"),
        (["x " * 300], "context of 256"),
        (["x " * 60_000], "at least"),
        (["x" * 300, "caf\udce9"], "the prompt is not UTF-8"),
        (["caf\udce9"], "the prompt is not UTF-8: byte 0xE9 after 'caf'"),
        (["hi", "--system", "\udcff"], "--system is not UTF-8: byte 0xFF after ''"),
        (["hi", "--model", "none.gguf"], "none.gguf"),
        (["hi", "--chat-template", "none.jinja"], "none.jinja"),
        (["hi", "--chat-template", "{{ raise_exception('no') }}"], "no"),
    ],
)
def test_what_cannot_be_answered(words: list[str], message: str, tiny_gguf: Path, capsys: Capture) -> None:
    assert main(["run", *SMALL, "--model", str(tiny_gguf), *words]) == USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("octavo: ") and captured.err.count("\n") == 1 and message in captured.err


@pytest.mark.parametrize("kind", ["catalogue", "file", "folder"])
def test_a_model_where_the_prompt_belongs_is_refused(kind: str, tiny_gguf: Path, capsys: Capture) -> None:
    first = {"catalogue": DEFAULT_MODEL.name, "file": str(tiny_gguf), "folder": str(tiny_gguf.parent)}[kind]
    assert main(["run", *SMALL, first, "what is it?"]) == USAGE
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and f"--model {first}" in captured.err
    words = ("--model", str(tiny_gguf), "--max-tokens", "1")
    assert ask(capsys, *words, first, "what is it?") and ask(capsys, *words, "~nobody-here", "?")


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
@pytest.mark.parametrize("raw", [(), ("--raw",)])
def test_a_pipe_that_is_not_utf8_is_one_line(errors: str, raw: tuple[str, ...], tiny_gguf: Path) -> None:
    command = [sys.executable, "-m", "octavo", "run", *SMALL, "--model", str(tiny_gguf), *raw]
    settings = {**os.environ, "PYTHONIOENCODING": f"utf-8:{errors}"}
    ended = subprocess.run(command, input=b"caf\xe9 ", capture_output=True, env=settings, check=False)
    message = b"octavo: the prompt is not UTF-8: byte 0xE9 after 'caf'\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (USAGE, b"", message)


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_chat_goes_on_after_a_line_that_is_not_utf8(
    errors: str, tiny_gguf: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["chat", str(tiny_gguf), *SMALL, "--temperature", "0", "--max-tokens", "6"]
    printed: list[str] = []
    for typed in (b"one\ntwo\n", b"one\ncaf\xe9\n/\xe9\ntwo\n"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed), encoding="utf-8", errors=errors))
        assert main(words) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] and printed[0]


@pytest.mark.parametrize("command", [["run", "hi"], ["chat"]])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-model-len", "512"], "max_model_len is 512, but the model has 256 positions: ask for at most 256"),
        (["--num-threads", "2"], "num_threads is 2, but the reference backend has no such choice"),
    ],
)
def test_what_only_the_engine_can_know(
    command: list[str], words: list[str], message: str, tiny_gguf: Path, capsys: Capture
) -> None:
    assert main([*command, *SMALL, "--model", str(tiny_gguf), *words]) == USAGE
    assert capsys.readouterr() == ("", f"octavo {command[0]}: cannot start: {message}\n")


@pytest.mark.parametrize("command", [["run", "--max-tokens=1", "hi"], ["chat"]])
def test_what_may_surprise_in_the_memory_plan_is_said(
    command: list[str], tiny_gguf: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main([*command, "--backend", "reference", "--num-blocks", "4", "--model", str(tiny_gguf)]) == 0
    first = capsys.readouterr().err.splitlines()[0]
    assert (
        first
        == "octavo: warning: the context is lowered from 256 to 64 tokens, as with --max-model-len 64: no more KV fits"
    )


def test_a_broken_file_is_one_line(tmp_path: Path, tiny_gguf: Path, capsys: Capture) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny_gguf.read_bytes()[:5000])
    assert main(["run", "hi", *SMALL, "--model", str(broken)]) == USAGE
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "broken.gguf" in error


def test_pieces_add_up_to_the_answer(partner: Partner) -> None:
    pieces: list[str] = []
    output = partner.answer(conversation("hi", None), GREEDY, pieces.append)
    assert "".join(pieces) == output.outputs[0].text
    assert len(pieces) > 1


def test_a_stop_string_ends_the_answer_and_frees_the_engine(partner: Partner) -> None:
    text = partner.complete("the", GREEDY, ignore).outputs[0].text
    middle = text[len(text) // 2]
    stopped = partner.complete("the", SamplingParams(temperature=0, max_tokens=12, stop=(middle,)), ignore)
    assert stopped.outputs[0].text == text[: text.index(middle)]
    assert partner.complete("the", GREEDY, ignore).outputs[0].text == text


def test_without_a_template_chat_is_refused(config: Config) -> None:
    from octavo import boot
    from octavo.engine.launch import InProcessClient

    checkpoint = boot.open_model(config)
    tokenizer, _ = boot.load_text(config, checkpoint)
    client = InProcessClient(lambda _, report: boot.build_replica(config, checkpoint, report))
    with Partner(client, tokenizer, None) as partner:
        partner.wait_ready()
        with pytest.raises(AnswerRefused, match="--chat-template"):
            partner.answer(conversation("hi", None), GREEDY, ignore)


def test_chat_keeps_the_conversation(
    llm: LLM, tiny_gguf: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n\n/exit\nthree\n"))
    assert main(["chat", str(tiny_gguf), *SMALL, "--temperature", "0", "--max-tokens", "6"]) == 0
    params = SamplingParams(temperature=0, max_tokens=6)
    turns = conversation("one", None)
    answers = []
    for nextword in ("two", "three"):
        answers.append(llm.chat(turns, params, use_tqdm=False)[0].outputs[0].text)
        turns = [*turns, {"role": "assistant", "content": answers[-1]}, {"role": "user", "content": nextword}]
    assert capsys.readouterr().out == "".join(f"{text}\n" for text in answers)


def test_chat_commands(partner: Partner, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n/system be kind\n/system\n/clera\n/help\nhi\n/clear\nhi\n"))
    talked = Conversation()
    talk(partner, talked, GREEDY, plain)
    printed = capsys.readouterr().out
    assert printed.count("(system message: be kind)") == 2
    assert "unknown command /clera; did you mean /clear?" in printed
    assert all(command.help in printed for command in COMMANDS.values())
    assert [message["role"] for message in talked.messages] == ["system", "user", "assistant"]


def test_a_turn_that_cannot_be_answered_is_taken_back(
    partner: Partner, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{'x ' * 300}\nhi\n"))
    talked = Conversation()
    talk(partner, talked, GREEDY, plain)
    assert "/clear begins anew" in capsys.readouterr().err
    assert [message["content"] for message in talked.turns if message["role"] == "user"] == ["hi"]


def test_ctrl_c_stops_the_answer_and_not_the_program(
    partner: Partner, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[list[str]] = []

    @contextlib.contextmanager
    def impatient() -> Iterator[Show]:
        pieces: list[str] = []
        shown.append(pieces)

        def show(text: str) -> None:
            pieces.append(text)
            if len(shown) == 1:
                signal.raise_signal(signal.SIGINT)

        yield show

    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n"))
    talked = Conversation()
    talk(partner, talked, SamplingParams(temperature=0, max_tokens=100, ignore_eos=True), impatient)
    first, second = (message["content"] for message in talked.turns if message["role"] == "assistant")
    assert first == "".join(shown[0]) and second == "".join(shown[1])
    assert len(shown[0]) == 1 and len(first) < len(second)
    assert "(stopped)" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["run", "hi"], ["chat"], ["doctor", "--port", "0"]])
def test_ctrl_c_while_a_model_loads_says_nothing(command: list[str], tiny_gguf: Path) -> None:
    words = [sys.executable, "-m", "octavo", *command, *SMALL, "--model", str(tiny_gguf)]
    slowly = {**os.environ, "OCTAVO_FAULT": "slow-load=2"}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, env=slowly, text=True) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.close()
        assert "on purpose" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr.read() == ""


def test_a_seed_of_the_configuration_begins_the_stream_of_seeds(config: Config) -> None:
    seeded = dataclasses.replace(config, model=dataclasses.replace(config.model, seed=5))
    params = SamplingParams(temperature=1, max_tokens=12, ignore_eos=True)
    runs: list[list[str]] = []
    for _ in range(2):
        with open_partner(seeded) as (partner, _facts):
            runs.append([partner.complete("the", params, ignore).outputs[0].text for _ in range(2)])
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]
