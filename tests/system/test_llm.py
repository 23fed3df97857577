"""LLM with the default model: what scripts written for vLLM's LLM rely on, and what goes wrong."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from octavo import LLM, SamplingParams, StructuredOutputsParams
from octavo.config import ConfigError
from octavo.core.plan import StepPlan, StepResult
from octavo.core.sampling import ParameterError
from octavo.engine.outputs import GenerationError

GREEDY = SamplingParams(temperature=0, max_tokens=12)
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
SEA = "The sea is"


def ask(llm: LLM, prompts, params=GREEDY):
    return llm.generate(prompts, params, use_tqdm=False)


def text_of(llm: LLM, prompt, params=GREEDY) -> str:
    return ask(llm, prompt, params)[0].outputs[0].text


def test_the_capital_of_france(llm):
    (output,) = llm.chat(FRANCE, SamplingParams(temperature=0, max_tokens=30), use_tqdm=False)
    choice = output.outputs[0]
    assert "Paris" in choice.text
    assert (choice.finish_reason, choice.stop_reason, output.finished) == ("stop", None, True)
    assert choice.text == llm.get_tokenizer().decode(choice.token_ids)


def test_a_chat_is_its_rendered_prompt(llm):
    (chat,) = llm.chat(FRANCE, GREEDY, use_tqdm=False)
    (plain,) = ask(llm, chat.prompt)
    assert plain.prompt_token_ids == chat.prompt_token_ids
    assert plain.outputs[0].token_ids == chat.outputs[0].token_ids


def test_many_conversations_answer_in_their_order(llm):
    germany = [{"role": "user", "content": "What is the capital of Germany?"}]
    outputs = llm.chat([FRANCE, germany, FRANCE], GREEDY, use_tqdm=False)
    assert ["Paris" in output.outputs[0].text for output in outputs] == [True, False, True]
    assert "Berlin" in outputs[1].outputs[0].text


def test_prompts_come_in_four_shapes(llm):
    ids = llm.get_tokenizer().encode(SEA)
    shapes = [SEA, ids, {"prompt": SEA}, {"prompt_token_ids": ids}]
    together = ask(llm, shapes)
    alone = [ask(llm, shape)[0] for shape in shapes]
    assert {tuple(output.outputs[0].token_ids) for output in (*together, *alone)} == {
        tuple(together[0].outputs[0].token_ids)
    }
    assert [output.prompt for output in together] == [SEA, None, SEA, None]


def test_integers_of_any_kind_are_token_ids(llm):
    ids = llm.get_tokenizer().encode(SEA)
    array = np.array(ids, dtype=np.int32)
    shapes = [array, [array], list(array), tuple(ids), {"prompt_token_ids": array}, np.array([ids]), (n for n in ids)]
    for shape in shapes:
        (output,) = ask(llm, shape)
        assert output.prompt_token_ids == ids and all(type(token) is int for token in output.prompt_token_ids)
        assert output.outputs[0].token_ids == ask(llm, SEA)[0].outputs[0].token_ids


def test_outputs_are_in_the_order_of_the_prompts_whatever_ends_first(llm):
    lengths = [9, 1, 5, 2, 7, 3]
    prompts = [f"{number} times {number} is" for number in range(len(lengths))]
    params = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in lengths]
    outputs = ask(llm, prompts, params)
    assert [output.prompt for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == lengths
    assert {output.outputs[0].finish_reason for output in outputs} == {"length"}


def test_choices_differ_and_come_again_with_the_same_seed(llm):
    params = SamplingParams(n=3, temperature=1.0, seed=7, max_tokens=8)
    first, second = ask(llm, [SEA, SEA], params)
    texts = [choice.text for choice in first.outputs]
    assert texts == [choice.text for choice in second.outputs]
    assert [choice.index for choice in first.outputs] == [0, 1, 2] and len(set(texts)) > 1
    assert text_of(llm, SEA, SamplingParams(temperature=1.0, seed=7, max_tokens=8)) == texts[0]


def test_without_a_seed_answers_differ(llm):
    outputs = ask(llm, [SEA] * 4, SamplingParams(temperature=1.0, max_tokens=8))
    assert len({output.outputs[0].text for output in outputs}) > 1


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_ends_the_answer(llm, include):
    whole = text_of(llm, SEA, SamplingParams(temperature=0, max_tokens=40))
    stop = whole.split()[5]
    params = SamplingParams(temperature=0, max_tokens=40, stop=[stop], include_stop_str_in_output=include)
    (output,) = ask(llm, SEA, params)
    choice = output.outputs[0]
    before = whole[: whole.index(stop)]
    assert choice.text == (before + stop if include else before)
    assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)
    assert len(choice.token_ids) < 40


def test_a_bad_word_does_not_come(llm):
    whole = text_of(llm, SEA, SamplingParams(temperature=0, max_tokens=40))
    word = whole.split()[3]
    kept = text_of(llm, SEA, SamplingParams(temperature=0, max_tokens=40, bad_words=[word]))
    assert word not in kept.split() and kept.startswith(whole[: whole.index(word)].rstrip())


def test_a_stop_string_ends_its_choice_only_and_the_engine_computes_it_no_more(llm):
    params = {"n": 2, "temperature": 1.0, "seed": 7, "max_tokens": 40, "ignore_eos": True}
    first, second = ask(llm, SEA, SamplingParams(**params))[0].outputs
    stop = next(word for word in second.text.split()[3:] if word not in first.text)
    steps: list[StepPlan] = []
    with watched(llm, steps):
        one, other = ask(llm, SEA, SamplingParams(**params, stop=[stop]))[0].outputs
    assert (one.text, one.finish_reason) == (first.text, "length")
    assert (other.text, other.stop_reason) == (second.text.partition(stop)[0], stop)
    drawn = [sample.choice for step in steps for work in step.work for sample in work.samples]
    assert (drawn.count(0), drawn.count(1)) == (40, len(other.token_ids)) and len(other.token_ids) < 40


@contextmanager
def watched(llm: LLM, steps: list[StepPlan]) -> Iterator[None]:
    """Adds each plan that is executed meanwhile to `steps`."""
    backend = llm._replica.backend
    execute = backend.execute

    def noted(plan: StepPlan) -> StepResult:
        steps.append(plan)
        return execute(plan)

    backend.execute = noted
    try:
        yield
    finally:
        del backend.execute


def test_a_stop_token_ends_the_answer_and_is_not_shown(llm):
    (whole,) = ask(llm, SEA)
    third = whole.outputs[0].token_ids[2]
    (output,) = ask(llm, SEA, SamplingParams(temperature=0, max_tokens=12, stop_token_ids=[third]))
    choice = output.outputs[0]
    assert choice.token_ids == whole.outputs[0].token_ids[:3] and choice.stop_reason == third
    assert choice.text == llm.get_tokenizer().decode(choice.token_ids[:2])


def test_a_second_equal_prompt_is_cached(llm):
    prompt = [(number * 7919) % 40000 + 100 for number in range(300)]
    first, second = (ask(llm, prompt)[0] for _ in range(2))
    assert first.num_cached_tokens == 0 and second.num_cached_tokens > 250
    assert first.outputs[0].token_ids == second.outputs[0].token_ids


def test_logprobs_have_the_token_first_and_add_up(llm):
    (output,) = ask(llm, SEA, SamplingParams(temperature=0, max_tokens=4, logprobs=2, prompt_logprobs=1))
    choice = output.outputs[0]
    assert choice.logprobs is not None and output.prompt_logprobs is not None
    for token, distribution in zip(choice.token_ids, choice.logprobs, strict=True):
        assert next(iter(distribution)) == token and distribution[token].rank == 1
        assert len(distribution) == 2 and all(entry.logprob < 0 for entry in distribution.values())
    first = [distribution[token].logprob for token, distribution in zip(choice.token_ids, choice.logprobs, strict=True)]
    assert choice.cumulative_logprob == sum(first)
    assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == len(output.prompt_token_ids)
    for token, distribution in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
        assert distribution is not None and next(iter(distribution)) == token


REFUSED = [
    ("", "no tokens"),
    ([], "no tokens"),
    ([5, 49152], "49152"),
    ([-1], "-1"),
    ({"prompt_token_ids": [7] * 3000}, "2048"),
    (" " * 10**6, "at least 12,346 tokens, more than the context of 2,048"),
]


@pytest.mark.parametrize(
    ("prompt", "words"), REFUSED, ids=["no text", "no ids", "past the end", "negative", "too long", "far too long"]
)
def test_a_prompt_that_cannot_be_served_is_refused_and_all_goes_on(llm, prompt, words):
    with pytest.raises(ValueError, match=words):
        ask(llm, [SEA, prompt, SEA])
    assert llm.generate(SEA, GREEDY, use_tqdm=False)[0].finished


def test_what_makes_no_sense_is_refused(llm):
    with pytest.raises(ValueError, match="2 sampling parameters for 1 prompts"):
        ask(llm, SEA, [GREEDY, GREEDY])
    with pytest.raises(ValueError, match="'prompt' or 'prompt_token_ids'"):
        ask(llm, {"text": SEA})
    with pytest.raises(ValueError, match=r"1\.5"):
        ask(llm, [[1, 1.5]])
    with pytest.raises(ParameterError, match="stop_token_ids"):
        ask(llm, SEA, SamplingParams(stop_token_ids=[10**6]))
    assert ask(llm, []) == []


@pytest.mark.parametrize(
    "prompts",
    [
        *(None, 5, 1.5, True, b"abc", bytearray(b"a"), [None], [5, "a"], [[5, True]], [b"abc"]),
        *({"prompt_token_ids": "abc"}, {"prompt_token_ids": b"abc"}, {"prompt_token_ids": 5}, {"prompt": None}),
        *(np.array([1.5]), np.array(5), np.array([True]), ["a", {}], [{"a"}]),
    ],
    ids=repr,
)
def test_what_is_no_prompt_is_refused_with_what_is_one(llm, prompts):
    with pytest.raises(
        ValueError, match=r"(a prompt is text.*|a prompt mapping must have )'prompt' or 'prompt_token_ids'"
    ):
        ask(llm, prompts)


@pytest.mark.parametrize("params", [{"max_tokens": 3}, [None], [GREEDY, {}], 5, "greedy", [[GREEDY]]], ids=repr)
def test_what_are_no_sampling_params_is_refused(llm, params):
    with pytest.raises(
        ValueError, match="sampling_params is a SamplingParams, or a list with one for each prompt, got "
    ):
        ask(llm, [SEA] * 2 if isinstance(params, list) and len(params) == 2 else SEA, params)


@pytest.mark.parametrize("messages", [None, 5, b"hi"])
def test_what_are_no_messages_is_refused(llm, messages):
    with pytest.raises(ValueError, match="objects with 'role' and 'content'"):
        llm.chat(messages, GREEDY, use_tqdm=False)


def test_a_closed_llm_says_so(default_model, caplog):
    llm = LLM(default_model, num_blocks=8, max_model_len=64)
    assert ask(llm, SEA)[0].finished
    for _ in range(2):
        llm.close()
    for call in (lambda: ask(llm, SEA), lambda: ask(llm, []), lambda: llm.chat(FRANCE, GREEDY, use_tqdm=False)):
        with pytest.raises(RuntimeError, match=r"^this LLM is closed$"):
            call()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_progress_bar_can_be_shown(llm, capsys):
    llm.generate([SEA, SEA], GREEDY, use_tqdm=True)
    assert "2/2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"max_model_length": 5}, TypeError, "max_model_len"),
        ({"port": 5}, TypeError, "port"),
        ({"block_size": 5}, ConfigError, "block_size"),
        ({"max_model_len": 9000}, ValueError, "8192"),
        ({"isa": "nosuch"}, ValueError, "isa nosuch: .* this machine runs .*scalar"),
        ({"num_blocks": 10**9}, ValueError, "lower num_blocks"),
        ({"max_model_len": 4096, "num_blocks": 4}, ValueError, "64 or less"),
        ({"model": "/nowhere/model.gguf"}, ValueError, "/nowhere/model.gguf"),
    ],
)
def test_arguments_that_cannot_be_used_say_why(default_model, options, error, words):
    with pytest.raises(error, match=words):
        LLM(**{"model": default_model, **options})


def test_a_failing_step_is_an_error_and_the_next_call_works(default_model):
    with LLM(default_model, max_num_seqs=4, max_model_len=256, fault="decode-error@3") as llm:
        with pytest.raises(GenerationError, match="injected on purpose"):
            ask(llm, [SEA, SEA])
        assert ask(llm, SEA, SamplingParams(temperature=0, max_tokens=2))[0].finished


def test_a_prompt_is_found_again_until_the_cache_is_reset(llm: LLM) -> None:
    """The offline engine says what was found and why the rest was not, as vLLM's does and more."""
    params = SamplingParams(max_tokens=1, temperature=0)
    ids = [index * 7 % 1000 for index in range(64)]

    def ask() -> tuple[int, str | None]:
        (output,) = llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
        return output.num_cached_tokens, output.cache_miss and output.cache_miss.reason.value

    assert [ask(), ask()] == [(0, "never_seen"), (63, None)]
    assert llm.reset_prefix_cache() and ask() == (0, "evicted")


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_answers_have_the_form_that_was_asked_for(llm):
    forms = [
        StructuredOutputsParams(json=PERSON),
        StructuredOutputsParams(choice=["positive", "negative"]),
        StructuredOutputsParams(regex=r"\d{3}-\d{4}"),
        StructuredOutputsParams(grammar='start: "a" ("b" | "c")+ "d"'),
    ]
    params = [SamplingParams(temperature=0.8, seed=1, n=2, max_tokens=60, structured_outputs=form) for form in forms]
    outputs = ask(llm, ["A person as JSON:"] * len(forms), params)
    for output in outputs:
        assert {choice.finish_reason for choice in output.outputs} == {"stop"}
    texts = [[choice.text for choice in output.outputs] for output in outputs]
    for person in map(json.loads, texts[0]):
        assert isinstance(person["name"], str) and 0 <= person["age"] <= 120
    assert set(texts[1]) <= {"positive", "negative"}
    assert all(re.fullmatch(r"\d{3}-\d{4}", text) for text in texts[2])
    assert all(re.fullmatch("a[bc]+d", text) for text in texts[3])


def test_company_and_the_cache_change_no_structured_answer(llm):
    params = SamplingParams(
        temperature=1, seed=3, max_tokens=40, structured_outputs=StructuredOutputsParams(json=PERSON)
    )
    alone = text_of(llm, SEA, params)
    together = ask(llm, [SEA, SEA, "Once", SEA], [GREEDY, params, params, params])
    assert together[1].outputs[0].text == together[3].outputs[0].text == alone
    assert together[0].outputs[0].text == text_of(llm, SEA)


def test_a_form_that_is_none_is_refused_before_anything_is_generated(llm):
    for form in (StructuredOutputsParams(regex="("), StructuredOutputsParams(json={"type": "notatype"})):
        with pytest.raises(ValueError, match="structured_outputs: "):
            ask(llm, [SEA, SEA], [GREEDY, SamplingParams(structured_outputs=form)])
