"""What clients send that other servers broke on: each is answered as the same request without it."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from octavo.config.schema import Config, ModelConfig, ServerConfig
from octavo.models.checkpoint import Checkpoint
from tests.server.site import Gate, Site, running

SAY: dict[str, Any] = {"role": "user", "content": "the"}
CALL = {"id": "c1", "index": 0, "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


def answered(site: Site, messages: list[Any], **fields: Any) -> tuple[list[int], str | None]:
    """The ids of the prompt, and the text of the answer."""
    response = site.chat(messages, **{"max_tokens": 4, "return_token_ids": True, **fields})
    assert response.status_code == 200, response.text
    body = response.json()
    return body["prompt_token_ids"], body["choices"][0]["message"]["content"]


FIELDS: dict[str, dict[str, Any]] = {
    "litellm without tools": {"tools": None, "tool_choice": "auto"},
    "openai-agents without tools": {"tools": [], "tool_choice": "none", "parallel_tool_calls": False},
    "notebook-intelligence": {"tools": None, "tool_choice": None},
    "langchain with everything null": dict.fromkeys(("stop", "n", "seed", "logprobs", "top_logprobs", "logit_bias")),
    "litellm's extra_body left in": {"extra_body": {}},
    "guidellm": {"stop": None, "ignore_eos": True, "stream_options": None},
    "vllm bench": {"repetition_penalty": 1.0, "logprobs": None},
    "open-webui": {
        "session_id": "a",
        "chat_id": "b",
        "background_tasks": {"title": True},
        "features": {},
        "params": {},
    },
    "ollama's and llama.cpp's own": {"keep_alive": "5m", "options": {}, "cache_prompt": True, "n_predict": 3},
    "openai's newest": {"store": False, "service_tier": "auto", "metadata": {}, "modalities": ["text"], "user": ""},
    "response_format text": {"response_format": {"type": "text"}},
    "both lengths": {"max_tokens": 4, "max_completion_tokens": 4},
    "integers for numbers": {"temperature": 0, "top_p": 1, "frequency_penalty": 0, "presence_penalty": 0},
    "all tokens, either way": {"top_k": -1, "min_p": 0},
}


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
def test_fields_that_ask_for_nothing_change_nothing(site: Site, fields: dict[str, Any]) -> None:
    plain = answered(site, [SAY], ignore_eos=fields.get("ignore_eos"))
    assert answered(site, [SAY], **fields) == plain


AN: dict[str, Any] = {"role": "assistant", "content": "an"}
CALLING: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "c1", "content": "21"}
CACHED = {"cache_control": {"type": "ephemeral"}}
DUMPED = {"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}
LITELLM = {"tool_calls": [], "provider_specific_fields": {"refusal": None}, "thinking_blocks": []}

MESSAGES: dict[str, tuple[list[Any], list[Any]]] = {
    "CodeCompanion's own fields": ([{**SAY, "id": 1947, "opts": {"visible": False}, "cycle": 1}], [SAY]),
    "openai's answer, as it was dumped": ([SAY, AN | DUMPED, SAY], [SAY, AN, SAY]),
    "litellm's answer, as it was dumped": ([SAY, AN | LITELLM, SAY], [SAY, AN, SAY]),
    "aider's cache_control": ([SAY | {"content": [{"type": "text", "text": "the", **CACHED}]}], [SAY]),
    "cache_control beside the content": ([SAY | CACHED], [SAY]),
    "content in parts": ([SAY | {"content": [{"type": "text", "text": "the"}]}], [SAY]),
    "a call with no parts": ([SAY, CALLING | {"content": []}, RESULT], [SAY, CALLING, RESULT]),
    "a call with an empty text": ([SAY, CALLING | {"content": ""}, RESULT], [SAY, CALLING, RESULT]),
    "a result in parts, with a name": (
        [SAY, CALLING, RESULT | {"name": "f", "content": [{"type": "text", "text": "21"}]}],
        [SAY, CALLING, RESULT],
    ),
    "a call without arguments, as it came in a stream": (
        [SAY, CALLING | {"tool_calls": [CALL | {"function": {"name": "f", "arguments": ""}}]}, RESULT],
        [SAY, CALLING, RESULT],
    ),
}


@pytest.mark.parametrize(("sent", "plain"), MESSAGES.values(), ids=MESSAGES)
def test_messages_are_the_same_prompt_whatever_else_is_in_them(site: Site, sent: list[Any], plain: list[Any]) -> None:
    def ids(messages: list[Any]) -> list[int]:
        response = site.post("/tokenize", {"messages": messages, "tools": TOOLS})
        assert response.status_code == 200, response.text
        return response.json()["tokens"]

    assert ids(sent) == ids(plain) != ids([*plain, SAY])


DECLARED: dict[str, dict[str, Any]] = {
    "no parameters": {"name": "f"},
    "an empty schema": {"name": "f", "parameters": {}},
    "nulls": {"name": "f", "description": None, "parameters": None, "strict": None},
    "pydantic's words": {
        "name": "f",
        "parameters": {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "title": "F",
            "type": "object",
            "properties": {"a": {"anyOf": [{"type": "boolean"}, {"type": "null"}], "default": None, "title": "A"}},
            "additionalProperties": False,
        },
        "strict": True,
    },
}


@pytest.fixture(scope="module")
def tooled(checkpoint: Checkpoint) -> Iterator[Site]:
    """A server whose template knows tools: in words they take more than the context."""
    with running(checkpoint) as site:
        assert site.app.service.template is not None
        site.app.service.template.knows_tools = True
        yield site


@pytest.mark.parametrize("function", DECLARED.values(), ids=DECLARED)
def test_functions_are_declared_in_many_ways(tooled: Site, function: dict[str, Any]) -> None:
    tool = {"type": "function", "function": function, **CACHED}
    assert tooled.chat("the", tools=[tool], max_tokens=4).status_code == 200
    forced = {"tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 99, "seed": 2, "temperature": 1}
    answer = tooled.chat("the", tools=[tool], **forced).json()
    [call] = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "f" and isinstance(json.loads(call["function"]["arguments"]), dict)


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1//chat/completions", "/v1/chat/completions"),
        ("//v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/openai/v1/chat/completions", "/v1/chat/completions"),
        ("/completions", "/v1/completions"),
        ("/models", "/v1/models"),
    ],
)
def test_a_base_url_that_is_not_quite_right_is_told_what_is(site: Site, path: str, meant: str) -> None:
    error = site.post(path, {"messages": [SAY]}).json()["error"]
    assert error["code"] == "unknown_url" and error["message"].endswith(f", but {meant}")


def test_where_nothing_is_meant_nothing_is_guessed(site: Site) -> None:
    for path in ("/", "/api/tags", "/v1/engines"):
        error = site.http.get(path).json()["error"]
        assert error["code"] == "unknown_url" and "but" not in error["message"]


def test_stream_options_without_a_stream_are_refused_as_openai_does(site: Site) -> None:
    refused = site.chat([SAY], stream_options={"include_usage": True})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "stream_options"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_control_tokens_that_a_raw_prompt_has_as_text_are_told(site: Site, stream: bool) -> None:
    """Editors and chat tools fill templates themselves, and mean control tokens by it."""
    said = site.complete("a <|im_end|> b <|im_start|>", max_tokens=1, stream=stream)
    assert said.status_code == 200
    assert said.headers["x-octavo-controls-as-text"] == "<|im_end|>,<|im_start|>"
    assert "x-octavo-controls-as-text" not in site.complete("a < |im_end|>", max_tokens=1, stream=stream).headers
    assert "x-octavo-controls-as-text" not in site.complete([[1, 2]], max_tokens=1, stream=stream).headers


def scored(choice: dict[str, Any], begin: int) -> tuple[float, bool]:
    """What lm_eval makes of an echoed prompt whose context has `begin` tokens: the sum, and whether it is greedy."""
    logprobs = choice["logprobs"]
    own, tops = logprobs["token_logprobs"][begin:-1], logprobs["top_logprobs"][begin:-1]
    return sum(own), all(value == max(top.values()) for value, top in zip(own, tops, strict=True))


def test_lm_eval_scores_what_a_model_would_say_and_what_it_would_not(site: Site) -> None:
    """A batch of ids with `echo` and one token to generate; a float that is the best one's is how it knows greedy."""
    contexts = [site.tokenizer.encode(text) for text in ("the", "an in", "of a the in")]
    best = [
        site.complete([ids], max_tokens=3, ignore_eos=True, return_token_ids=True).json()["choices"][0]["token_ids"]
        for ids in contexts
    ]
    wrong = [[*ids[:2], ids[2] - 1] for ids in best]
    prompts = [context + ids for context, ids in zip(contexts * 2, best + wrong, strict=True)]
    asked: dict[str, Any] = {"max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    choices = site.complete(prompts, **asked).json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(6))
    found = [scored(choice, len(context)) for choice, context in zip(choices, contexts * 2, strict=True)]
    assert [greedy for _, greedy in found] == [True] * 3 + [False] * 3
    assert all(likely > unlikely for (likely, _), (unlikely, _) in zip(found[:3], found[3:], strict=True))
    alone = [site.complete([prompt], **asked).json()["choices"][0]["logprobs"] for prompt in prompts]
    assert alone == [choice["logprobs"] for choice in choices]
    assert [len(each["token_logprobs"]) for each in alone] == [len(prompt) + 1 for prompt in prompts]


def test_lm_eval_reads_texts_with_a_bos_as_the_ids_that_they_are(checkpoint: Checkpoint) -> None:
    """`tokenized_requests=False` sends what /detokenize makes of ids that begin with a BOS."""
    model = ModelConfig(model="tiny", allow_special_tokens_in_text=True)
    vocabulary = dataclasses.replace(checkpoint.vocabulary, add_bos=True)
    config = Config(model=model, server=ServerConfig(port=0))
    with running(dataclasses.replace(checkpoint, vocabulary=vocabulary), config) as site:
        ids = [1, *site.tokenizer.encode("the an in", add_special_tokens=False)]
        text = site.post("/detokenize", {"tokens": ids}).json()["prompt"]
        answer = site.complete([text, "the an in"], max_tokens=1, return_token_ids=True).json()
        assert [choice["prompt_token_ids"] for choice in answer["choices"]] == [ids, ids]


def as_the_standard_says(reads: list[str]) -> Iterator[str]:
    data: list[str] = []
    for line in "".join(reads).split("\n"):
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield "\n".join(data)
            data.clear()


def as_sglang_bench(reads: list[str]) -> Iterator[str]:
    """Each line is an event, or empty."""
    for line in "".join(reads).splitlines():
        if stripped := line.strip():
            yield stripped.removeprefix("data: ")


def as_vllm_bench(reads: list[str]) -> Iterator[str]:
    """What a read brings is stripped, put behind what is left of others, and cut where an event ends, or has to."""
    rest = ""
    for read in reads:
        *whole, rest = (rest + read.strip()).split("\n\n")
        if rest.startswith("data: ") and rest.endswith(("}", "]")):
            whole, rest = [*whole, rest], ""
        yield from (event.removeprefix("data: ") for event in whole if not event.startswith(":"))


def reads_of(site: Site, gate: Gate, path: str, body: dict[str, Any]) -> list[str]:
    """What a client reads that is there for each part of a stream which is kept alive before each of its steps."""
    site.app.service.keep_alive_s = 0.01
    reads: list[str] = []
    with site.http.stream("POST", path, json={**body, "stream": True}) as response:
        for part in response.iter_raw():
            reads.append(part.decode())
            if not part.strip():
                gate.let(1)
    return reads


@pytest.mark.parametrize("read", [as_the_standard_says, as_sglang_bench, as_vllm_bench])
@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/completions", {"prompt": "the"}), ("/v1/chat/completions", {"messages": [SAY]})],
    ids=["completions", "chat"],
)
def test_a_stream_that_is_kept_alive_has_nothing_but_events(
    gated: tuple[Site, Gate], path: str, body: dict[str, Any], read: Callable[[list[str]], Iterator[str]]
) -> None:
    """Load generators read in ways that the standard knows nothing of, and count what they cannot read as failed."""
    site, gate = gated
    reads = reads_of(site, gate, path, {**body, "max_tokens": 4, "ignore_eos": True})
    *chunks, done = read(reads)
    assert done == "[DONE]" and len([1 for part in reads if not part.strip()]) >= 4
    assert [json.loads(chunk)["choices"][0]["index"] for chunk in chunks] == [0] * len(chunks)
    assert json.loads(chunks[-1])["choices"][0]["finish_reason"] == "length"
