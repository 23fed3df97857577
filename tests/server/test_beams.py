"""Beam search and best_of through the API: each field with its effect or its 400, whole and streamed."""

from typing import Any

import pytest

from octavo.config.schema import Config, ModelConfig, ServerConfig
from octavo.models.checkpoint import Checkpoint
from tests.server.site import Gate, Site, backend_of, running

PROMPT = "the an in"
BEAMS: dict[str, Any] = {
    "use_beam_search": True,
    "temperature": None,
    "n": 3,
    "max_tokens": 8,
    "return_token_ids": True,
}
HOT: dict[str, Any] = {"temperature": 1.5, "seed": 3, "max_tokens": 8, "return_token_ids": True}


def answer(site: Site, **fields: Any) -> dict[str, Any]:
    response = site.complete(PROMPT, **fields)
    assert response.status_code == 200, response.text
    return response.json()


def ids(answer: dict[str, Any]) -> list[list[int]]:
    return [choice["token_ids"] for choice in answer["choices"]]


def totals(answer: dict[str, Any]) -> list[float]:
    return [sum(choice["logprobs"]["token_logprobs"]) for choice in answer["choices"]]


# -- beams -----------------------------------------------------------------------------------------------------------


def test_beams_come_best_first_and_more_likely_than_greedy(site: Site) -> None:
    found = answer(site, **BEAMS, best_of=6, logprobs=0, ignore_eos=True)
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2]
    assert len({tuple(each) for each in ids(found)}) == 3
    assert totals(found) == sorted(totals(found), reverse=True)
    greedy = answer(site, max_tokens=8, logprobs=0, ignore_eos=True, return_token_ids=True)
    assert totals(found)[0] >= totals(greedy)[0]
    assert found["usage"]["completion_tokens"] == 3 * 8, "what the returned choices have"


def test_one_beam_is_greedy(site: Site) -> None:
    assert ids(answer(site, **{**BEAMS, "n": 1})) == ids(answer(site, max_tokens=8, return_token_ids=True))


def test_the_width_is_best_of_and_n_says_how_many_come(site: Site) -> None:
    assert ids(answer(site, **{**BEAMS, "n": 2}, best_of=5)) == ids(answer(site, **{**BEAMS, "n": 5}))[:2]


def test_their_logprobs_are_those_of_the_raw_distribution(site: Site) -> None:
    """Echoed as a prompt, a beam has the logprobs that it was found with."""
    found = answer(site, **BEAMS, logprobs=2)
    for choice in found["choices"]:
        logprobs = choice["logprobs"]
        assert all(len(top) in (2, 3) for top in logprobs["top_logprobs"])
        prompt = site.tokenizer.encode(PROMPT)
        echoed = site.complete([[*prompt, *choice["token_ids"]]], echo=True, max_tokens=0, logprobs=0).json()
        due = echoed["choices"][0]["logprobs"]["token_logprobs"][len(prompt) :]
        assert logprobs["token_logprobs"] == due[: len(logprobs["token_logprobs"])]


def test_length_penalty_and_early_stopping_change_what_is_found(site: Site) -> None:
    """With an end that is likely at any time."""
    free = [token for tokens in ids(answer(site, **{**BEAMS, "n": 8})) for token in tokens]
    ends = {**BEAMS, "n": 4, "max_tokens": 12, "stop_token_ids": sorted(set(free))[:3]}
    short, plain, long = (ids(answer(site, **ends, length_penalty=penalty)) for penalty in (-3, 1, 3))
    assert sum(map(len, short)) < sum(map(len, long))
    assert ids(answer(site, **ends, early_stopping=True)) != plain
    assert ids(answer(site, **ends, length_penalty=3, early_stopping="never")) != ids(
        answer(site, **ends, length_penalty=3, early_stopping=True)
    )


def test_stop_tokens_end_beams_and_min_tokens_keeps_them_going(site: Site) -> None:
    free = ids(answer(site, **BEAMS))
    stop = free[0][2]
    stopped = answer(site, **BEAMS, stop_token_ids=[stop])["choices"]
    for choice in stopped:
        inside = stop in choice["token_ids"]
        assert (choice["stop_reason"], choice["finish_reason"]) == ((stop, "stop") if inside else (None, "length"))
        assert not inside or choice["token_ids"].index(stop) == len(choice["token_ids"]) - 1
    later = answer(site, **BEAMS, stop_token_ids=[stop], min_tokens=6)
    assert all(stop not in each[:6] for each in ids(later))


def test_a_stop_string_cuts_the_answers_that_were_found(site: Site) -> None:
    free = answer(site, **BEAMS)
    text = free["choices"][0]["text"]
    stop = text[3]
    cut = answer(site, **BEAMS, stop=stop)
    for before, after in zip(free["choices"], cut["choices"], strict=True):
        head, found, _ = before["text"].partition(stop)
        assert after["text"] == head
        assert after["finish_reason"] == ("stop" if found else before["finish_reason"])
        assert after["stop_reason"] == (stop if found else before["stop_reason"])
    assert cut["usage"]["completion_tokens"] < free["usage"]["completion_tokens"]


def test_several_prompts_and_their_cache(site: Site) -> None:
    prompts = ["an of the " * 6, "of an in " * 6]
    first = site.complete(prompts, **BEAMS, echo=True, logprobs=1).json()
    assert [choice["index"] for choice in first["choices"]] == list(range(6))
    assert [choice["text"][:5] for choice in first["choices"]] == [prompts[0][:5]] * 3 + [prompts[1][:5]] * 3
    again = site.complete(prompts, **BEAMS).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert ids(again) == ids(first)


@pytest.mark.parametrize("endpoint", ["complete", "chat"])
def test_a_stream_brings_the_same_once_it_is_known(site: Site, endpoint: str) -> None:
    ask = getattr(site, endpoint)
    whole = ask(PROMPT, **BEAMS).json()
    options = {"include_usage": True}
    streamed = site.stream(ask(PROMPT, **BEAMS, stream=True, stream_options=options))
    assert streamed.done and not streamed.errors
    assert len(streamed.chunks) == 3 + 1, "one for each beam, and the usage"
    for choice in whole["choices"]:
        index = choice["index"]
        due = choice["text"] if endpoint == "complete" else choice["message"]["content"]
        assert streamed.text(index) == due
        assert streamed.finish(index) == [(choice["finish_reason"], choice["stop_reason"])]
        if endpoint == "chat":
            assert streamed.choices(index)[0]["delta"]["role"] == "assistant"
    last = streamed.chunks[-1]
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_a_stream_is_kept_alive_while_beams_are_searched_for(checkpoint: Checkpoint) -> None:
    gate = Gate(backend_of(checkpoint))
    with running(checkpoint, backend=gate) as site:
        site.app.service.keep_alive_s = 0.01
        with site.http.stream("POST", "/v1/completions", json={"prompt": PROMPT, **BEAMS, "stream": True}) as response:
            lines = response.iter_lines()
            assert next(lines) == ""
            gate.open()
            assert any(line.startswith("data: {") for line in lines)


def test_a_client_that_leaves_ends_the_search(checkpoint: Checkpoint) -> None:
    gate = Gate(backend_of(checkpoint))
    with running(checkpoint, backend=gate) as site:
        with site.opened("/v1/completions", {"prompt": PROMPT, **BEAMS, "stream": True}):
            gate.let(2)
            site.until(lambda: site.metric("vllm:num_requests_running") == 3)
        gate.open()
        site.until(lambda: site.metric("vllm:num_requests_running") == 0)
        site.until(lambda: site.metric("octavo:blocks", state="leased") == 0)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 0.7}, "temperature"),
        ({"top_p": 0.5}, "top_p"),
        ({"top_k": 5}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"allowed_token_ids": [5, 6]}, "allowed_token_ids"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 65}, "best_of"),
        ({"best_of": "many"}, "best_of"),
        ({"length_penalty": 11}, "length_penalty"),
        ({"length_penalty": "long"}, "length_penalty"),
        ({"early_stopping": "always"}, "early_stopping"),
        ({"early_stopping": 1}, "early_stopping"),
        ({"use_beam_search": "yes"}, "use_beam_search"),
        ({"use_beam_search": False, "length_penalty": 2}, "length_penalty"),
        ({"use_beam_search": False, "early_stopping": True}, "early_stopping"),
        ({"best_of": 60, "stop_token_ids": list(range(80))}, "n"),
    ],
    ids=str,
)
def test_what_does_not_go_with_beams_is_refused_by_name(site: Site, fields: dict[str, Any], param: str) -> None:
    for response in (site.complete(PROMPT, **{**BEAMS, **fields}), site.chat(PROMPT, **{**BEAMS, **fields})):
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"temperature": 1}, {"top_k": -1}, {"seed": 5}, {"top_p": 1}])
def test_what_asks_for_nothing_else_is_taken(site: Site, fields: dict[str, Any]) -> None:
    assert ids(answer(site, **{**BEAMS, **fields})) == ids(answer(site, **BEAMS))


@pytest.mark.parametrize("beams", [False, True])
def test_who_names_no_limit_exceeds_none(site: Site, beams: bool) -> None:
    """12 contexts of 256 tokens in a pool of 2,048: they would end where the pool does."""
    fields = {"n": 12, "use_beam_search": beams, "stop_token_ids": list(range(100)), "early_stopping": beams}
    assert site.chat("the", **fields).status_code == 200
    refused = site.chat("the", **fields, max_tokens=200)
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "pool_too_small"


# -- best_of ---------------------------------------------------------------------------------------------------------


def test_the_best_of_several_samples_are_returned(site: Site) -> None:
    every = answer(site, **HOT, n=6, logprobs=0)
    ranked = sorted(zip(totals(every), ids(every), strict=True), key=lambda pair: -pair[0])
    best = answer(site, **HOT, n=2, best_of=6)
    assert ids(best) == [tokens for _, tokens in ranked[:2]]
    assert [choice["index"] for choice in best["choices"]] == [0, 1]
    assert all(choice["logprobs"] is None for choice in best["choices"]), "they were not asked for"
    assert best["usage"]["completion_tokens"] == sum(len(tokens) for _, tokens in ranked[:2])


def test_a_sample_that_a_stop_string_ended_counts_up_to_there(site: Site) -> None:
    """Its rest is not generated, and not ranked by."""
    free = answer(site, **HOT, n=6, logprobs=0)
    stop = free["choices"][4]["text"][:2]
    every = answer(site, **HOT, n=6, stop=stop)
    lengths = [len(tokens) for tokens in ids(every)]
    sums = [
        sum(choice["logprobs"]["token_logprobs"][:length])
        for choice, length in zip(free["choices"], lengths, strict=True)
    ]
    best = max(range(6), key=lambda number: sums[number])
    assert ids(answer(site, **HOT, n=1, best_of=6, stop=stop)) == [ids(every)[best]]


def test_the_best_are_chosen_for_each_prompt(site: Site) -> None:
    both = site.complete(["a", "b"], **HOT, n=2, best_of=4).json()
    alone = [site.complete([prompt], **HOT, n=2, best_of=4).json() for prompt in ("a", "b")]
    assert ids(both) == [*ids(alone[0]), *ids(alone[1])]
    assert [choice["index"] for choice in both["choices"]] == [0, 1, 2, 3]
    assert both["usage"]["completion_tokens"] == sum(each["usage"]["completion_tokens"] for each in alone)


def test_best_of_as_many_as_are_returned_chooses_nothing(site: Site) -> None:
    assert ids(answer(site, **HOT, n=2, best_of=2)) == ids(answer(site, **HOT, n=2))
    assert site.complete(PROMPT, n=2, best_of=2, stream=True, max_tokens=1).status_code == 200


def test_best_of_cannot_be_streamed_or_smaller_than_n(site: Site) -> None:
    for ask in (site.complete, site.chat):
        streamed = ask(PROMPT, best_of=2, stream=True).json()["error"]
        assert streamed["param"] == "best_of" and "cannot be streamed" in streamed["message"]
        assert ask(PROMPT, n=3, best_of=2).json()["error"]["param"] == "best_of"


def test_a_small_server_says_which_field_is_too_large(checkpoint: Checkpoint) -> None:
    config = Config(model=ModelConfig(model="tiny"), server=ServerConfig(port=0))
    with running(checkpoint, config, max_num_seqs=2) as site:
        error = site.complete(PROMPT, **{**BEAMS, "n": 1}, best_of=3).json()["error"]
        assert error["code"] == "too_many_choices" and "best_of is 3" in error["message"]
        assert error["param"] == "n" or error["param"] == "best_of"
