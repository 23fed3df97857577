"""Answers of a form, over HTTP: OpenAI's, vLLM's and the older spellings, and what is refused by name."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.config.schema import LimitsConfig
from octavo.core.events import Stepped
from octavo.core.structured import MAX_STRUCTURE_CHARS, MAX_STRUCTURE_DEPTH
from octavo.core.structured import StructuredOutputsParams as Params
from octavo.server.trials import QUICK_S, Trials
from octavo.text.lark import GrammarError
from tests.server.site import Gate, Site

POINT = {
    "type": "object",
    "properties": {"x": {"enum": [1, 22]}, "y": {"enum": ["é", "日本"]}},
    "required": ["x", "y"],
    "additionalProperties": False,
}


def schema(of: Any = POINT, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "point", "schema": of, **more}}


CONST = {"type": "const_string", "value": "const"}
FORMS: list[dict[str, Any]] = [
    {"response_format": schema()},
    {"response_format": schema(strict=True, description="a point")},
    {"structured_outputs": {"json": POINT}},
    {"structured_outputs": {"json": json.dumps(POINT)}},
    {"guided_json": POINT},
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: next(iter(form)))
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_a_schema_is_followed_in_chat_and_completions(site: Site, form: dict[str, Any], temperature: float):
    fields = {"max_tokens": 100, "temperature": temperature, "seed": 3, **form}
    chat, plain = site.chat("Go", **fields).json()["choices"][0], site.complete("Go", **fields).json()["choices"][0]
    for text, choice in ((chat["message"]["content"], chat), (plain["text"], plain)):
        point = json.loads(text)
        assert point["x"] in (1, 22) and point["y"] in ("é", "日本")
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)


@pytest.mark.parametrize(
    ("form", "answers"),
    [
        ({"structured_outputs": {"choice": ["yes", "yes, sir", "no"]}}, ["yes", "yes, sir", "no"]),
        ({"guided_choice": ["yes", "no"]}, ["yes", "no"]),
        ({"structured_outputs": {"regex": "(ab|cd)[12]"}}, ["ab1", "ab2", "cd1", "cd2"]),
        ({"guided_regex": "a{3}"}, ["aaa"]),
        ({"structured_outputs": {"grammar": 'start: "x" ("y" | "z")'}}, ["xy", "xz"]),
        ({"guided_grammar": 'root ::= "x" ("y" | "z")'}, ["xy", "xz"]),
        ({"response_format": {"type": "text"}, "guided_regex": "q"}, ["q"]),
        ({"response_format": {"type": "structural_tag", "format": CONST}}, ["const"]),
        ({"structured_outputs": {"structural_tag": {"type": "structural_tag", "format": CONST}}}, ["const"]),
    ],
    ids=str,
)
def test_texts_of_each_kind(site: Site, form: dict[str, Any], answers: list[str]):
    for seed in range(3):
        answer = site.complete("Go", max_tokens=20, temperature=1, seed=seed, **form).json()["choices"][0]
        assert answer["text"] in answers and answer["finish_reason"] == "stop"


def test_any_object(site: Site):
    choice = site.chat("Go", max_tokens=60, response_format={"type": "json_object"}).json()["choices"][0]
    text = choice["message"]["content"]
    assert text.startswith("{")
    assert choice["finish_reason"] == "length" or isinstance(json.loads(text), dict)


def test_a_stream_is_the_same_answer(site: Site):
    fields = {"max_tokens": 100, "temperature": 1, "seed": 5, "n": 3, "response_format": schema()}
    whole = site.chat("Go", **fields).json()["choices"]
    streamed = site.stream(site.chat("Go", stream=True, **fields))
    assert streamed.done
    for index, choice in enumerate(whole):
        assert streamed.text(index) == choice["message"]["content"]
        assert streamed.finish(index) == [("stop", None)]


def test_logprobs_are_of_the_raw_distribution(site: Site):
    free = site.complete("Go", max_tokens=1, logprobs=3).json()["choices"][0]["logprobs"]
    kept = site.complete("Go", max_tokens=1, logprobs=3, guided_choice=["zzz"]).json()["choices"][0]["logprobs"]
    assert kept["top_logprobs"][0].items() >= free["top_logprobs"][0].items()
    assert kept["tokens"][0].startswith("z") and kept["token_logprobs"][0] <= free["token_logprobs"][0]


def test_an_answer_that_is_cut_says_length(site: Site):
    choice = site.complete("Go", max_tokens=3, guided_regex="a{50}").json()["choices"][0]
    assert choice["finish_reason"] == "length" and set(choice["text"]) == {"a"}


def test_a_stop_string_ends_it_too(site: Site):
    choice = site.complete("Go", max_tokens=60, guided_regex="ab+c{20}", stop=["cccc"], logit_bias={}).json()
    choice = choice["choices"][0]
    assert choice["finish_reason"] in ("stop", "length") and "cccc" not in choice["text"]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": schema({"type": "notatype"})}, "response_format.json_schema.schema", "notatype"),
        ({"response_format": schema({"not": {}})}, "response_format.json_schema.schema", "not"),
        ({"response_format": schema({"$ref": "#/a"})}, "response_format.json_schema.schema", "a"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "required"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
            "required",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "required",
        ),
        ({"response_format": schema(["x"])}, "response_format.json_schema.schema", "object"),
        ({"response_format": schema(strict="yes")}, "response_format.json_schema.strict", "boolean"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "yaml"),
        ({"response_format": {}}, "response_format.type", "required"),
        ({"response_format": "json"}, "response_format", "object"),
        (
            {"response_format": {"type": "text", "json_schema": {"name": "x", "schema": {}}}},
            "response_format.json_schema",
            "type",
        ),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema", "not a known"),
        ({"response_format": {"type": "structural_tag"}}, "response_format", "structures"),
        ({"structured_outputs": {}}, "structured_outputs", "one of"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "one of"),
        ({"structured_outputs": {"regex": "(("}}, "structured_outputs.regex", "unclosed"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "empty"),
        ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice", "empty"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "JSON"),
        ({"structured_outputs": {"grammar": "start: gone"}}, "structured_outputs.grammar", "gone"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern", ""),
        ({"structured_outputs": {"yaml": "x"}}, "structured_outputs.yaml", "not a known"),
        ({"guided_regex": "("}, "guided_regex", "unclosed"),
        ({"guided_json": "5"}, "guided_json", "object"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "both"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "both"),
        ({"grammar": "x"}, "grammar", "structured_outputs"),
    ],
    ids=str,
)
def test_what_is_no_form_is_a_400_that_names_it(site: Site, fields: dict[str, Any], param: str, words: str):
    for response in (site.chat("Go", max_tokens=3, **fields), site.complete("Go", max_tokens=3, stream=True, **fields)):
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == param and words in error["message"]


def test_the_hard_limits_are_the_settings_highest():
    assert (LimitsConfig().max_schema_length, LimitsConfig().max_schema_depth) == (
        MAX_STRUCTURE_CHARS,
        MAX_STRUCTURE_DEPTH,
    )


def test_null_asks_for_nothing(site: Site):
    nulls = dict.fromkeys(("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice"))
    fields = {"max_tokens": 4, "temperature": 0}
    free = site.complete("Go", **fields).json()["choices"][0]["text"]
    assert site.complete("Go", **fields, **nulls).json()["choices"][0]["text"] == free
    assert site.complete("Go", **fields, response_format={"type": "text"}).json()["choices"][0]["text"] == free


def test_a_dead_end_is_its_own_clients_error(site: Site):
    """The form wants letters that allowed_token_ids does not have."""
    (allowed,) = site.tokenizer.encode("a", add_special_tokens=False)
    response = site.complete("Go", max_tokens=20, guided_regex="ab", allowed_token_ids=[allowed])
    assert response.status_code == 400 and "no token may be drawn" in response.json()["error"]["message"]
    assert response.json()["error"]["code"] == "nothing_allowed"
    assert site.complete("Go", max_tokens=2).status_code == 200


def test_a_deep_or_long_schema_is_refused(site: Site):
    deep: dict[str, Any] = {}
    for _ in range(MAX_STRUCTURE_DEPTH):
        deep = {"items": deep}
    long = {"enum": ["x" * 1000] * 140}
    for of, words in ((deep, "levels"), (long, "long")):
        error = site.chat("Go", response_format=schema(of)).json()["error"]
        assert error["param"] == "response_format.json_schema.schema" and words in error["message"]


def test_a_request_that_waits_for_its_form_is_counted_by_that_reason(gated: tuple[Site, Gate]):
    site, _ = gated
    assert site.metric("vllm:num_requests_waiting_by_reason", reason="deferred") == 0
    assert site.metric("vllm:num_requests_waiting_by_reason", reason="capacity") == 0
    site.app.service.meters.on_event(Stepped(0.0, 1, 0, 3, 0, 1, 0, 0, {}, 2, waiting={"guide": 2, "seqs": 1}))
    assert site.metric("vllm:num_requests_waiting_by_reason", reason="deferred") == 2
    assert site.metric("vllm:num_requests_waiting_by_reason", reason="capacity") == 1


def some(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Fields that say what form the answer has, with these values somewhere in them."""
    return st.one_of(
        st.fixed_dictionaries(
            {"response_format": values | st.dictionaries(st.sampled_from(PARTS), values, max_size=3)}
        ),
        values.map(lambda of: {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": of}}}),
        st.fixed_dictionaries(
            {"structured_outputs": values | st.dictionaries(st.sampled_from(KINDS), values, max_size=2)}
        ),
        st.dictionaries(st.sampled_from(["guided_json", "guided_regex", "guided_choice", "guided_grammar"]), values),
    )


PARTS = ["type", "json_schema", "structures", "triggers"]
KINDS = ["json", "regex", "choice", "grammar", "json_object", "structural_tag"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["json_object", "json_schema"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*PARTS, "items", "enum"]), inner),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=some(VALUES))
def test_whatever_comes_as_a_form_is_answered_or_is_a_400(site: Site, fields: dict[str, Any]):
    response = site.complete("Go", max_tokens=2, **fields)
    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        assert response.json()["error"]["message"]


@pytest.mark.parametrize("quick_s", [0.0, QUICK_S])
def test_both_lanes_of_trials_come_to_the_same_verdicts(quick_s: float):
    """One that takes a second, and usual ones beside it."""
    slow = {"patternProperties": {f"^a{i}b": {"type": "integer"} for i in range(600)}}
    forms = [Params(json=slow), Params(regex="b"), Params(regex="("), Params(choice=["c"]), Params(regex="b")]

    async def all_at_once() -> list[str | None]:
        trials = Trials(quick_s)
        jobs = [trials.check(form.output()) for form in forms]
        answers = await asyncio.gather(*jobs, return_exceptions=True)
        again = await asyncio.gather(*[trials.check(form.output()) for form in forms], return_exceptions=True)
        assert list(map(str, again)) == list(map(str, answers))
        trials.close()
        return [str(answer)[:8] if isinstance(answer, GrammarError) else answer for answer in answers]

    assert asyncio.run(all_at_once()) == ["it takes", None, "at 1(8):", None, None]
