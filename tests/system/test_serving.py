"""What a served model owes its clients: their own answers, alone or together, and a server that outlives bad input."""

import json
import os
import subprocess
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageFunctionToolCall

from tests.system.serving import EXIT_S, MODEL, Served, command, serving

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
COUNTRIES = (
    "France Germany Italy Spain Portugal Greece Turkey Egypt Kenya Japan China India Nepal Iran Iraq Israel "
    "Poland Hungary Austria Sweden Norway Finland Denmark Ireland Cuba Peru Chile Brazil Canada Mexico Russia Ukraine"
)
LONG = "The river runs through the valley and past the mill. " * 30


def ask(server: Served, content: str, **fields: object) -> openai.types.chat.ChatCompletion:
    fields = {"temperature": 0, "max_tokens": 12, **fields}
    messages = [{"role": "user", "content": content}]
    with server.client() as client:
        return client.chat.completions.create(model=MODEL, messages=messages, **fields)


def continued(server: Served, prompt: str) -> str:
    with server.client() as client:
        return client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=6).choices[0].text


def text_of(answer: openai.types.chat.ChatCompletion) -> str:
    return answer.choices[0].message.content or ""


def get(url: str) -> tuple[int, str]:
    with urllib.request.urlopen(url, timeout=30) as response:
        return response.status, response.read().decode()


def post(url: str, body: dict[str, object]) -> dict[str, object]:
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(
        urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=30
    ) as response:
        return json.load(response)


def test_the_capital_of_france_streamed_and_not(server: Served) -> None:
    with server.client() as client:
        fields = {"model": client.models.list().data[0].id, "messages": FRANCE, "temperature": 0, "max_tokens": 40}
        whole = client.chat.completions.create(**fields)
        chunks = list(client.chat.completions.create(**fields, stream=True))
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "Paris" in text_of(whole)
    assert "".join(pieces) == text_of(whole)
    assert len(pieces) > 3


def test_many_clients_at_once_each_get_the_answer_they_get_alone(server: Served) -> None:
    prompts = [
        f"Ticket {7919 * number}. The capital of {country} is" for number, country in enumerate(COUNTRIES.split())
    ]
    with ThreadPoolExecutor(len(prompts)) as clients:
        together = list(clients.map(lambda prompt: continued(server, prompt), prompts))
    alone = [continued(server, prompt) for prompt in prompts]
    assert together == alone
    assert len(set(alone)) > len(prompts) // 2


def test_the_second_of_two_equal_prompts_is_cached(server: Served) -> None:
    first, second = ask(server, f"First. {LONG}"), ask(server, f"First. {LONG}")
    assert first.usage.prompt_tokens == second.usage.prompt_tokens > 300
    assert first.usage.prompt_tokens_details.cached_tokens < 64
    assert second.usage.prompt_tokens_details.cached_tokens > 250
    assert text_of(first) == text_of(second)


def test_a_prompt_longer_than_the_token_budget_is_answered_the_same(server: Served, default_model: Path) -> None:
    limits = ("--max-num-batched-tokens", "64", "--max-num-seqs", "8", "--max-model-len", "2048")
    with serving(str(default_model), *limits) as small:
        assert text_of(ask(small, LONG)) == text_of(ask(server, LONG))


BAD = {
    "an empty list of ids": {"prompt": []},
    "an id past the vocabulary": {"prompt": [10**6]},
    "a negative id": {"prompt": [-1]},
    "a prompt past the context": {"prompt": [17] * 9000},
    "a temperature below zero": {"prompt": "x", "temperature": -1},
    "no tokens at all": {"prompt": "x", "max_tokens": 0, "n": 0},
    "no prompt": {},
}


@pytest.mark.parametrize("fields", BAD.values(), ids=BAD.keys())
def test_a_bad_request_says_why_and_the_server_lives_on(server: Served, fields: dict[str, object]) -> None:
    with server.client() as client, pytest.raises(openai.BadRequestError) as refused:
        client.post("/completions", body=fields, cast_to=object)
    assert refused.value.body["message"]
    assert get(f"{server.url}/health")[0] == 200
    assert "Paris" in continued(server, "The capital of France is")


def test_tokens_and_back(server: Served) -> None:
    text = "naïve café, 東京 🗼"
    ids = post(f"{server.url}/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
    assert post(f"{server.url}/detokenize", {"tokens": ids})["prompt"] == text


def test_metrics_and_version_answer(server: Served) -> None:
    assert json.loads(get(f"{server.url}/version")[1])["version"]
    assert "vllm:num_requests_running" in get(f"{server.url}/metrics")[1]


def failing(*arguments: str) -> str:
    """What the command says when it cannot do what it was asked; it must not succeed, hang, or show a traceback."""
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=EXIT_S)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    assert "nowhere.gguf" in failing("serve", str(tmp_path / "nowhere.gguf"), "--port", "0")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all" * 100], ids=["empty", "cut off", "else"])
def test_a_broken_file_is_said(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(content)
    assert "broken.gguf" in failing("serve", str(file), "--port", "0")


def test_a_port_in_use_is_said(server: Served, default_model: Path) -> None:
    assert str(server.port) in failing("serve", str(default_model), "--port", str(server.port))


def test_the_engine_dies_with_its_server_and_the_server_ends_well(default_model: Path) -> None:
    with serving(str(default_model), "--max-model-len", "1024") as server:
        engines = server.children(b"\0engine\0")
        assert len(engines) == 1
        server.process.terminate()
        assert server.process.wait(EXIT_S) == 0
    assert not [pid for pid in engines if os.path.exists(f"/proc/{pid}")]


def test_tools_through_the_client_of_openai(server: Served) -> None:
    """The default model's template knows no tools: it is told in words, and demanded calls are one."""
    city = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
    tool: Any = {"type": "function", "function": {"name": "get_weather", "parameters": city, "strict": True}}
    messages: list[Any] = [{"role": "user", "content": "How warm is it in Oslo?"}]
    fields: Any = {"model": MODEL, "tools": [tool], "temperature": 0, "max_tokens": 80}
    with server.client() as client:
        choice = client.chat.completions.create(messages=messages, tool_choice="required", **fields).choices[0]
        with client.chat.completions.stream(messages=messages, tool_choice="required", **fields) as stream:
            streamed = stream.get_final_completion().choices[0]
        assert choice.finish_reason == streamed.finish_reason == "tool_calls"
        [call], [same] = choice.message.tool_calls or [], streamed.message.tool_calls or []
        assert isinstance(call, ChatCompletionMessageFunctionToolCall)
        assert (same.function.name, same.function.arguments) == (call.function.name, call.function.arguments)
        assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
        asked = choice.message.model_dump(exclude_none=True)
        result = {"role": "tool", "tool_call_id": call.id, "content": "21 C and sunny"}
        again = client.chat.completions.create(messages=[*messages, asked, result], **fields)
    first = len(tokens_of(server, messages, tool))
    assert again.usage is not None and again.usage.prompt_tokens > first, "the call and its result are in the prompt"


def tokens_of(server: Served, messages: Any, tool: Any) -> list[int]:
    tokens: Any = post(f"{server.url}/tokenize", {"messages": messages, "tools": [tool]})["tokens"]
    return tokens
