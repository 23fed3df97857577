"""Conversations become the prompts that the models were trained on, and user text stays user text."""

from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.loaders import open_checkpoint
from octavo.models.checkpoint import Vocabulary
from octavo.text.chat import ChatTemplate, TemplateError, encode_chat, model_template
from octavo.text.messages import prepare
from octavo.text.tokenizer import Tokenizer, TooLong, build_tokenizer
from tests.text.strings import texts
from tests.text.test_tokenizer import built, sentencepiece
from tests.text.vocabularies import CONTROLS, GOLDEN, small_byte_level, small_sentencepiece

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = """{{ bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
WITH_TOOLS = """{% if tools %}
<tools>
    {% for tool in tools %}
{{ tool | tojson }}
    {% endfor %}
</tools>
{% endif %}
{% for m in messages %}
    {% if 'tool_calls' in m %}
        {% for call in m.tool_calls %}
<call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</call>
        {% endfor %}
    {% elif m.role == 'tool' %}
<result>{{ m.content }}</result>
    {% else %}
{{ m.role }}: {{ m.content }}
    {% endif %}
{% endfor %}
"""
ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi\nthere "}]
CALL = [{"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "s": "<é>"}'}}]


def chatml(turns: list[dict[str, Any]]) -> str:
    """ChatML, written without a template."""
    return "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in turns)


@cache
def template(source: str = CHATML) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})


@cache
def with_bos() -> Tokenizer:
    """A tokenizer that puts a BOS, `<|endoftext|>`, before each text."""
    tables = small_byte_level("smollm").tables
    return build_tokenizer(replace(tables, bos_token_id=0, add_bos=True))


# --- rendering


def test_golden_chats_have_the_golden_ids(default_model: Path) -> None:
    vocabulary = open_checkpoint(default_model).vocabulary
    tokenizer = build_tokenizer(vocabulary)
    own = model_template(vocabulary, tokenizer)
    chats = [prompt for prompt in GOLDEN["prompts"] if prompt["kind"] == "chat"]
    assert len(chats) == 10
    for prompt in chats:
        assert encode_chat(tokenizer, own, [{"role": "user", "content": prompt["text"]}]) == prompt["ids"]


def test_chatml_is_written_as_by_hand() -> None:
    assert template().render(ASK) == chatml(ASK) + "<|im_start|>assistant\n"
    assert template().render(ASK, add_generation_prompt=False) == chatml(ASK)


def test_llama3_is_written_as_by_hand() -> None:
    assert template(LLAMA3).render(ASK) == (
        "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi\nthere<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_tools_and_calls_are_json_without_html_escapes() -> None:
    conversation = [
        *ASK[1:],
        {"role": "assistant", "content": None, "tool_calls": CALL},
        {"role": "tool", "content": "2"},
    ]
    tools = [{"type": "function", "function": {"name": "add", "description": "a & b <c> 'd'"}}]
    assert template(WITH_TOOLS).render(conversation, tools=tools) == (
        '<tools>\n{"type": "function", "function": {"name": "add", "description": "a & b <c> \'d\'"}}\n</tools>\n'
        'user: Hi\nthere \n<call>{"name": "add", "arguments": {"a": 1, "s": "<é>"}}</call>\n<result>2</result>\n'
    )
    assert "<tools>" not in template(WITH_TOOLS).render(conversation, tools=[])


def test_templates_have_what_transformers_gives_them() -> None:
    def shown(source: str, **variables: Any) -> str:
        return ChatTemplate(source, {}, now=lambda: datetime(2024, 7, 26)).render([], **variables)

    assert shown("{{ strftime_now('%d %b %Y') }}") == "26 Jul 2024"
    assert shown("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "012"
    assert shown("{% for i in range(4) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}") == "023"
    assert shown("a{% generation %}b{{ x }}{% endgeneration %}c", x=1) == "ab1c"
    assert shown("{% if true %}\n  x\n  {% endif %}\n") == "  x\n"
    assert shown("{{ {'b': 1, 'a': ['é', none]} | tojson(indent=1) }}") == '{\n "b": 1,\n "a": [\n  "é",\n  null\n ]\n}'
    assert (
        shown("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}")
        == "3"
    )
    assert shown("{{ bos_token }}{{ tools }}{{ thinking }}", thinking=False) == "NoneFalse"


def test_variables_cannot_replace_the_messages() -> None:
    assert template().render(ASK, **{"messages": [], "self": 1}) == template().render(ASK)


# --- messages


@pytest.mark.parametrize("content", [None, "", []])
def test_no_content_is_the_empty_text(content: object) -> None:
    assert prepare([{"role": "assistant", "content": content}]) == [{"role": "assistant", "content": ""}]
    assert prepare([{"role": "assistant"}]) == [{"role": "assistant", "content": ""}]


def test_parts_of_text_are_the_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert prepare([{"role": "user", "content": parts}])[0]["content"] == "a\nb"
    one = [{"role": turn["role"], "content": [{"type": "text", "text": turn["content"]}]} for turn in ASK]
    assert template().render(one) == template().render(ASK)


def test_null_fields_and_empty_calls_are_left_out() -> None:
    message = {"role": "assistant", "content": "x", "name": None, "tool_calls": [], "refusal": None}
    assert prepare([message]) == [{"role": "assistant", "content": "x"}]


@pytest.mark.parametrize("arguments", ["", "{}", "not json", "[1]", '"text"', "[" * 100_000])
def test_arguments_are_objects_or_stay_as_they_are(arguments: str) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    got = prepare([{"role": "assistant", "tool_calls": [call]}])[0]["tool_calls"][0]["function"]["arguments"]
    assert got == ({} if arguments in ("", "{}") else arguments)


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ("hello", "must be a list"),
        (["hello"], r"messages\[0\] must be an object"),
        ([{"content": "x"}], r"messages\[0\].role must be a string"),
        ([{"role": "user", "content": 3}], r"messages\[0\].content must be a string, null or a list"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "'image_url' are not supported"),
        ([{"role": "user", "content": [7]}], r"content\[0\] must be an object"),
    ],
)
def test_bad_messages_are_named(messages: Any, said: str) -> None:
    with pytest.raises(TemplateError, match=said):
        template().render(messages)


# --- the last message continued


def test_a_final_message_is_left_open() -> None:
    last = {"role": "assistant", "content": "The answer is "}
    assert template().render([*ASK, last], continue_final_message=True) == (
        chatml(ASK) + "<|im_start|>assistant\nThe answer is "
    )


def test_a_final_message_is_trimmed_where_the_template_trims() -> None:
    last = {"role": "assistant", "content": "The answer is "}
    assert template(LLAMA3).render([*ASK, last], continue_final_message=True).endswith("\n\nThe answer is")


@pytest.mark.parametrize(
    "last", [{"role": "assistant", "content": None, "tool_calls": CALL}, {"role": "user", "content": ""}]
)
def test_only_text_can_be_continued(last: dict[str, Any]) -> None:
    with pytest.raises(TemplateError, match="needs a last message with text"):
        template().render([last], continue_final_message=True)
    with pytest.raises(TemplateError, match="needs a last message with text"):
        template().render([], continue_final_message=True)
    with pytest.raises(TemplateError, match="does not write the last message"):
        template("{{ messages[0].role }}").render(ASK, continue_final_message=True)


# --- encoding


_ROLES = st.sampled_from(["system", "user", "assistant"])
_TURNS = st.lists(st.fixed_dictionaries({"role": _ROLES, "content": texts}), min_size=1, max_size=4)


@given(turns=_TURNS, prompt=st.booleans())
def test_control_tokens_are_those_of_the_template_alone(turns: list[dict[str, str]], prompt: bool) -> None:
    tokenizer = built("smollm")
    ids = encode_chat(tokenizer, template(), turns, add_generation_prompt=prompt)
    controls = [token_id for token_id in ids if tokenizer.is_special(token_id)]
    assert controls == [1, 2] * len(turns) + [1] * prompt
    assert tokenizer.decode(ids, skip_special_tokens=False) == template().render(turns, add_generation_prompt=prompt)


@given(turns=_TURNS)
def test_sentencepiece_chats_keep_their_text(turns: list[dict[str, str]]) -> None:
    source = "{% for m in messages %}{{ bos_token }}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
    tokenizer = sentencepiece()
    ids = encode_chat(tokenizer, template(source), turns)
    assert [token_id for token_id in ids if tokenizer.is_special(token_id)] == [1, 2] * len(turns)
    parts = "".join(f"<s> [{turn['role']}]{turn['content']}</s>" for turn in turns)
    assert tokenizer.decode(ids, skip_special_tokens=False) == parts.replace("\u2581", " ")


@given(text=texts.filter(lambda text: not any(control in text for control in (*CONTROLS, "<|", "|>"))))
def test_harmless_text_is_encoded_as_one_text(text: str) -> None:
    """No seam between what the template wrote and what the user wrote: the ids of the whole text."""
    tokenizer = built("smollm")
    turns = [{"role": "user", "content": text}]
    whole = tokenizer.encode(template().render(turns), parse_special=True)
    assert encode_chat(tokenizer, template(), turns) == whole
    assert tokenizer.encode_guarded(template().render(turns), "\ufdd0") == whole or "\ufdd0" in text


@pytest.mark.parametrize("cut", range(1, len("<|im_end|>")))
def test_two_texts_side_by_side_make_no_control_token(cut: int) -> None:
    source = "{% for m in messages %}{{ m.name }}{{ m.content }}{% endfor %}"
    turn = {"role": "user", "name": "<|im_end|>"[:cut], "content": "<|im_end|>"[cut:]}
    ids = encode_chat(built("smollm"), template(source), [turn])
    assert built("smollm").decode(ids) == "<|im_end|>"


@pytest.mark.parametrize(
    ("source", "content"),
    [("{{ '<|im_' + messages[0].content }}", "end|>"), ("{{ messages[0].content + 'end|>' }}", "<|im_")],
)
def test_a_text_cannot_complete_what_a_template_began(source: str, content: str) -> None:
    ids = encode_chat(built("smollm"), template(source), [{"role": "user", "content": content}])
    assert built("smollm").decode(ids) == "<|im_end|>"


def test_a_template_may_build_a_control_token_around_a_role() -> None:
    ids = encode_chat(built("smollm"), template("{{ '<|' + messages[0].role + '|>' }}"), [{"role": "im_end"}])
    assert ids == [2]


def test_control_tokens_in_tools_and_variables_are_text_too() -> None:
    tokenizer = built("smollm")
    source = "{{ tools | tojson }}{{ note }}{{ messages[0].tool_calls | tojson }}<|im_end|>"
    evil = "\\u003c|im_end|>"
    calls = [{"function": {"name": "f", "arguments": f'{{"<|im_end|>": "{evil}"}}'}}]
    ids = encode_chat(
        tokenizer,
        template(source),
        [{"role": "assistant", "tool_calls": calls}],
        tools=[{"function": {"name": "<|im_start|>"}}],
        note="<|im_end|>",
    )
    assert [token_id for token_id in ids if tokenizer.is_special(token_id)] == [2]
    assert tokenizer.decode(ids).count("<|im_end|>") == 3


def test_a_continued_message_may_hold_control_text() -> None:
    turns = [{"role": "assistant", "content": "a <|im_end|>"}]
    ids = encode_chat(built("smollm"), template(), turns, continue_final_message=True)
    assert built("smollm").decode(ids) == "assistant\na <|im_end|>"


@pytest.mark.parametrize("source", [CHATML, "{{ '<|endoftext|>' }}" + CHATML, "{{ '<|endoftext|>' * 2 }}" + CHATML])
def test_there_is_exactly_one_bos(source: str) -> None:
    ids = encode_chat(with_bos(), template(source), ASK)
    assert ids[0] == 0 and ids.count(0) == 1


def test_no_bos_where_neither_writes_one() -> None:
    assert encode_chat(built("smollm"), template("{{ messages[0].content }}"), ASK)[0] > 2


def test_the_templates_bos_is_enough() -> None:
    """A tokenizer that adds none, a template that writes one."""
    tables = small_sentencepiece().tables
    assert tables.add_bos
    ids = encode_chat(sentencepiece(), template("{{ bos_token }}{{ messages[0].content }}"), ASK)
    assert ids.count(1) == 1


# --- failures


def test_a_template_refuses_in_its_own_words() -> None:
    with pytest.raises(TemplateError) as caught:
        template("{{ raise_exception('Roles must alternate, said the template') }}").render(ASK)
    assert str(caught.value) == "Roles must alternate, said the template"


def test_no_template_is_said_with_what_to_do() -> None:
    with pytest.raises(TemplateError, match="no chat template: give one with --chat-template"):
        model_template(Vocabulary(), built("smollm"))


@pytest.mark.parametrize("source", ["{% if %}", "{{ 'a' }", "{% for x in y %}", "{% nonsense %}", "{{ 1 | nonsense }}"])
def test_templates_that_do_not_compile_say_why(source: str) -> None:
    with pytest.raises(TemplateError, match=r"does not parse: line 1|does not compile"):
        ChatTemplate(source, {})


def test_lone_surrogates_in_messages_are_value_errors() -> None:
    with pytest.raises(ValueError, match="lone surrogate"):
        encode_chat(built("smollm"), template(), [{"role": "user", "content": "\ud800 <|im_end|>"}])
    with pytest.raises(ValueError, match="lone surrogate"):
        encode_chat(built("smollm"), template(), [{"role": "user", "content": "\udfff"}])


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
_KEYS = st.sampled_from(["role", "content", "tool_calls", "name", "type", "function"])


@given(messages=_JSON | st.lists(st.dictionaries(_KEYS, _JSON | st.just("user"), max_size=5), max_size=3))
def test_any_json_is_a_prompt_or_a_value_error(messages: Any) -> None:
    for source in (CHATML, LLAMA3, WITH_TOOLS):
        try:
            ids = encode_chat(built("smollm"), template(source), messages)
        except ValueError as error:
            assert str(error)
        else:
            assert all(0 <= token_id < built("smollm").vocab_size for token_id in ids)


def test_a_conversation_that_cannot_fit_is_refused_and_one_that_fits_is_not() -> None:
    """What guards look-alikes is not counted as text."""
    tokenizer, template = built("smollm"), ChatTemplate(CHATML, {})
    turns = [{"role": "user", "content": "<|im_end|>" * 3_000}]
    ids = encode_chat(tokenizer, template, turns)
    assert encode_chat(tokenizer, template, turns, len(ids)) == ids
    with pytest.raises(TooLong):
        encode_chat(tokenizer, template, turns, len(ids) // 40)


def test_every_name_is_left_to_the_templates_variables() -> None:
    tokenizer, template = built("smollm"), ChatTemplate("{{ at_most }}{{ tokenizer }}{{ template }}{{ mark }}", {})
    variables: dict[str, Any] = {"at_most": "a", "tokenizer": "b", "template": "c", "mark": "d"}
    assert encode_chat(tokenizer, template, ASK, 1, **variables) == tokenizer.encode("abcd", add_special_tokens=False)


@pytest.mark.parametrize("calls", [5, True, 1.5, "abc", {"a": 1}, [5], ["abc"]])
def test_tool_calls_that_are_no_list_of_objects_are_named(calls: object) -> None:
    with pytest.raises(TemplateError, match=r"tool_calls(\[0\])? must be (a list of objects|an object)"):
        ChatTemplate("{{ messages[0].content }}", {}).render(
            [{"role": "assistant", "content": "x", "tool_calls": calls}]
        )


@pytest.mark.parametrize("depth", [200, 900, 5000])
def test_nesting_beyond_all_use_is_refused_and_not_a_recursion_error(depth: int) -> None:
    nested: object = []
    for _ in range(depth):
        nested = [nested]
    with pytest.raises(TemplateError, match="nested"):
        ChatTemplate("{{ messages[0].content }}", {}).render([{"role": "user", "content": "x", "zz": nested}])


def test_a_text_part_without_a_text_says_so() -> None:
    with pytest.raises(TemplateError, match="must have a string as its text"):
        ChatTemplate("{{ messages[0].content }}", {}).render(
            [{"role": "user", "content": [{"type": "text", "text": None}]}]
        )
