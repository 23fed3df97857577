"""What single fields do, in more than one case each. That each field does something, `test_each_field.py` shows."""

import dataclasses
from typing import Any

import pytest

from octavo.models.checkpoint import Checkpoint
from tests.server.site import Site, running

PROMPT = "the an in"
HOT = {"temperature": 1.5, "seed": 3}


def text(site: Site, **fields: Any) -> str:
    response = site.complete(PROMPT, **{"max_tokens": 12, **fields})
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


def ids(site: Site, **fields: Any) -> list[int]:
    response = site.complete(PROMPT, **{"max_tokens": 12, "return_token_ids": True, **fields})
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["token_ids"]


@pytest.mark.parametrize(
    "fields", [{"temperature": 0}, {"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}], ids=lambda fields: next(iter(fields))
)
def test_greedy_by_each_of_four_ways(site: Site, fields: dict[str, Any]) -> None:
    assert ids(site, **HOT) != ids(site)
    assert ids(site, **{**HOT, **fields}) == ids(site)


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
def test_penalties_change_what_is_generated(site: Site, name: str) -> None:
    assert ids(site, max_tokens=30, **{name: 2}) != ids(site, max_tokens=30)


def test_seed_repeats_and_is_told(site: Site) -> None:
    first = site.complete(PROMPT, temperature=1, max_tokens=12)
    again = site.complete(PROMPT, temperature=1, max_tokens=12, seed=int(first.headers["x-octavo-seed"]))
    assert again.json()["choices"] == first.json()["choices"]
    assert ids(site, **HOT) != ids(site, **{**HOT, "seed": 4})
    assert site.complete(PROMPT, seed=-1, max_tokens=1).headers["x-octavo-seed"] == str(2**64 - 1)


def test_n_gives_choices_in_order(site: Site) -> None:
    choices = site.complete(["a", "b"], n=3, temperature=1, seed=1, max_tokens=6).json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(6))
    assert len({choice["text"] for choice in choices[:3]}) > 1


def test_max_tokens_under_both_names(site: Site) -> None:
    assert len(ids(site, max_tokens=3)) == 3
    assert len(ids(site, max_tokens=None, max_completion_tokens=3)) == 3
    assert len(ids(site, max_tokens=None, ignore_eos=True)) == 16
    both = site.complete(PROMPT, max_tokens=3, max_completion_tokens=4)
    assert both.status_code == 400 and both.json()["error"]["param"] == "max_tokens"


def test_max_tokens_beyond_the_context_is_lowered_and_said(site: Site) -> None:
    response = site.complete(PROMPT, max_tokens=10**9, ignore_eos=True)
    usage = response.json()["usage"]
    assert usage["total_tokens"] == 256
    assert response.headers["x-octavo-max-tokens"] == str(usage["completion_tokens"])
    assert response.json()["choices"][0]["finish_reason"] == "length"


def test_chat_runs_up_to_the_context_by_default(site: Site) -> None:
    answer = site.chat("the", ignore_eos=True).json()
    assert answer["usage"]["total_tokens"] == 256


def eos_bias(value: float) -> dict[str, dict[str, float]]:
    return {"logit_bias": {"0": value, "2": value}}


def test_ignore_eos_and_min_tokens(site: Site) -> None:
    """With the end-of-text tokens made certain, an answer is one token, unless it must not end."""
    assert len(ids(site, **eos_bias(100))) == 1
    assert len(ids(site, ignore_eos=True, **eos_bias(100))) == 12
    assert len(ids(site, min_tokens=5, **eos_bias(100))) == 6


def test_skip_special_tokens(site: Site) -> None:
    forced: dict[str, Any] = {"ignore_eos": True, "max_tokens": 2, "allowed_token_ids": [2]}
    assert text(site, **forced) == ""
    assert text(site, skip_special_tokens=False, **forced) == "<|im_end|><|im_end|>"


def test_logit_bias_and_allowed_token_ids(site: Site) -> None:
    first = ids(site)[0]
    assert ids(site, logit_bias={str(first): -100})[0] != first
    assert set(ids(site, allowed_token_ids=[70, 71], **HOT)) <= {70, 71}


@pytest.mark.parametrize("stop", ["c", ["zz", "bc"], ["abcd", "cd"]], ids=str)
def test_stop_ends_before_it(site: Site, stop: Any) -> None:
    """The only tokens that can come are those that spell a, b, c and d."""
    forced: dict[str, Any] = {"allowed_token_ids": letters(site, "abcd"), "max_tokens": 60, **HOT}
    free = text(site, **forced)
    stops = [stop] if isinstance(stop, str) else stop
    found = min((free.find(each) + len(each), -len(each), each) for each in stops if each in free)[2]
    choice = site.complete(PROMPT, stop=stop, **forced).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (free[: free.find(found)], "stop", found)
    shown = site.complete(PROMPT, stop=stop, include_stop_str_in_output=True, **forced).json()["choices"][0]
    assert shown["text"] == free[: free.find(found)] + found


def letters(site: Site, text: str) -> list[int]:
    return [token for letter in text for token in site.tokenizer.encode(letter)]


def test_stop_token_ids(site: Site) -> None:
    b = letters(site, "b")[0]
    forced: dict[str, Any] = {"allowed_token_ids": letters(site, "ab"), "max_tokens": 60, **HOT}
    free = text(site, **forced)
    answer = site.complete(PROMPT, stop_token_ids=[b], **forced).json()
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (free[: free.find("b")], "stop", b)
    assert answer["usage"]["completion_tokens"] == free.find("b") + 1


def test_echo(site: Site) -> None:
    assert text(site, echo=True) == PROMPT + text(site)
    given = site.complete([letters(site, "ab")], echo=True, max_tokens=1).json()["choices"][0]["text"]
    assert given.startswith("ab")


def test_echo_alone_generates_nothing(site: Site) -> None:
    answer = site.complete(PROMPT, echo=True, max_tokens=0, logprobs=1).json()
    choice = answer["choices"][0]
    assert choice["text"] == PROMPT and choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    assert len(choice["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"]
    assert site.complete(PROMPT, max_tokens=0).json()["error"]["param"] == "max_tokens"


def test_chat_continues_and_echoes_the_last_message(site: Site) -> None:
    messages = [{"role": "user", "content": "the"}, {"role": "assistant", "content": "and in"}]
    fields: dict[str, Any] = {"continue_final_message": True, "max_tokens": 4}
    plain = site.chat(messages, **fields).json()
    echoed = site.chat(messages, echo=True, **fields).json()
    assert echoed["choices"][0]["message"]["content"] == "and in" + plain["choices"][0]["message"]["content"]
    closed = site.chat(messages, add_generation_prompt=False, max_tokens=4).json()
    assert closed["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"]
    assert site.chat(messages, echo=True).json()["error"]["param"] == "echo"
    both = site.chat(messages, add_generation_prompt=True, **fields)
    assert both.json()["error"]["param"] == "continue_final_message"


def test_truncate_prompt_tokens(site: Site) -> None:
    prompt = letters(site, "abcdefgh")
    cut = site.complete([prompt], truncate_prompt_tokens=3, return_token_ids=True, max_tokens=1).json()
    assert cut["choices"][0]["prompt_token_ids"] == prompt[-3:]
    long = prompt * 40
    assert site.complete([long], max_tokens=6).status_code == 400
    fitted = site.complete([long], truncate_prompt_tokens=-1, max_tokens=6, ignore_eos=True).json()
    assert (fitted["usage"]["prompt_tokens"], fitted["usage"]["completion_tokens"]) == (250, 6)


def test_cache_salt_isolates(site: Site) -> None:
    def cached(salt: str | None) -> int:
        usage = site.complete("a salted prompt " * 4, max_tokens=1, cache_salt=salt).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    assert cached("x") == 0 and cached("y") == 0 and cached("x") > 0
    assert site.complete(PROMPT, cache_salt="").json()["error"]["param"] == "cache_salt"


def test_priority_needs_its_policy(site: Site) -> None:
    refused = site.complete(PROMPT, priority=1)
    assert refused.status_code == 400 and "--scheduling-policy" in refused.json()["error"]["message"]
    assert site.complete(PROMPT, priority=0, max_tokens=1).status_code == 200


def test_chat_template_kwargs_reach_the_template(site: Site) -> None:
    """They are its variables; what is a field of the request is not to be given twice."""
    assert site.chat("the", chat_template_kwargs={"anything": 1}, max_tokens=1).status_code == 200
    refused = site.chat("the", chat_template_kwargs={"tools": []})
    assert refused.json()["error"]["param"] == "chat_template_kwargs"


def test_what_the_template_does_not_read_is_told(site: Site) -> None:
    """Its variables are known: one that it has not is as good as a field that nobody knows."""
    response = site.chat("the", chat_template_kwargs={"enable_thinking": False, "bos_token": "x"}, max_tokens=1)
    told = "chat_template_kwargs.enable_thinking,chat_template_kwargs.bos_token"
    assert response.headers["x-octavo-unknown-fields"] == told
    refused = site.chat("the", documents=[{"text": "a"}])
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "documents"
    assert site.chat("the", documents=[], chat_template_kwargs={}, max_tokens=1).status_code == 200


def test_fields_of_messages_that_the_template_does_not_read_are_told(site: Site) -> None:
    """Those that say nothing, as clients that send whole objects back have many, are not."""
    empty = {"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": []}
    messages = [
        {"role": "assistant", "content": "a", **empty},
        {"role": "user", "name": "bob", "content": "the", "zz": 1},
    ]
    told = site.chat(messages, max_tokens=1).headers["x-octavo-unknown-fields"]
    assert told == "messages[].name,messages[].zz"
    assert "x-octavo-unknown-fields" not in site.chat([messages[0]], max_tokens=1).headers


def test_older_names_in_messages_say_the_same(site: Site) -> None:
    def prompt_of(*messages: dict[str, Any]) -> list[int]:
        return site.chat([{"role": "user", "content": "a"}, *messages], max_tokens=1, return_token_ids=True).json()[
            "prompt_token_ids"
        ]

    function = {"name": "f", "arguments": '{"a": 1}'}
    call = {"id": "f", "type": "function", "function": function}
    old = prompt_of({"role": "assistant", "function_call": function}, {"role": "function", "name": "f", "content": "5"})
    new = prompt_of({"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "f", "content": "5"})
    silent = prompt_of({"role": "assistant"}, {"role": "tool", "tool_call_id": "f", "content": "5"})
    assert old == new != silent
    assert prompt_of({"role": "assistant", "refusal": "no"}) == prompt_of({"role": "assistant", "content": "no"})
    for name, value in (("function_call", 5), ("function_call", {"name": 5}), ("refusal", 5)):
        refused = site.chat([{"role": "assistant", name: value}]).json()["error"]
        assert refused["param"].startswith(f"messages[0].{name}")


@pytest.mark.parametrize("path", ["/tokenize", "/octavo/v1/explain", "/octavo/v1/pins"])
def test_what_is_about_messages_is_not_taken_beside_a_text(site: Site, path: str) -> None:
    """And the other way round: nothing is accepted and ignored."""
    conversation = {"messages": [{"role": "user", "content": "the an in of the an in"}]}
    for body, about in (
        (
            {"prompt": "the an in of the"},
            ("add_generation_prompt", "continue_final_message", "tools", "chat_template_kwargs"),
        ),
        (conversation, ("add_special_tokens", "parse_special")),
    ):
        for name in about:
            value = {"tools": [{"type": "function", "function": {"name": "f"}}], "chat_template_kwargs": {"a": 1}}
            refused = site.post(path, {**body, name: value.get(name, True)})
            assert refused.status_code == 400 and refused.json()["error"]["param"] == name
            nothing = {"tools": [], "chat_template_kwargs": {}}
            assert site.post(path, {**body, name: nothing.get(name, False)}).status_code < 300
    site.forget_pins()


def test_add_special_tokens_and_an_empty_prompt_where_there_is_a_bos(checkpoint: Checkpoint) -> None:
    vocabulary = dataclasses.replace(checkpoint.vocabulary, add_bos=True)
    with running(dataclasses.replace(checkpoint, vocabulary=vocabulary)) as site:

        def prompt_ids(prompt: str, **fields: Any) -> list[int]:
            answer = site.complete(prompt, max_tokens=1, return_token_ids=True, **fields).json()
            return answer["choices"][0]["prompt_token_ids"]

        plain = prompt_ids(PROMPT, add_special_tokens=False)
        assert prompt_ids(PROMPT) == [1, *plain] and prompt_ids("") == [1]
        assert site.complete("", add_special_tokens=False).json()["error"]["param"] == "prompt"
        assert site.post("/tokenize", {"prompt": PROMPT, "add_special": False}).json()["tokens"] == plain


def test_request_id_names_the_answer(site: Site) -> None:
    assert site.complete(PROMPT, request_id="mine", max_tokens=1).json()["id"] == "cmpl-mine"


def test_tokens_as_ids(site: Site) -> None:
    logprobs = site.complete(PROMPT, logprobs=1, return_tokens_as_token_ids=True, max_tokens=2).json()
    names = logprobs["choices"][0]["logprobs"]["tokens"]
    assert names == [f"token_id:{token}" for token in ids(site, max_tokens=2)]


def test_unknown_fields_come_back_in_a_header(site: Site) -> None:
    response = site.complete(PROMPT, max_tokens=1, temprature=1, **{"é\n": 2})
    assert response.status_code == 200
    assert response.headers["x-octavo-unknown-fields"] == "temprature,%C3%A9%0A"
