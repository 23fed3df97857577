"""Tool calls in text: what each form reads, that the cutting of the text changes nothing, and that nothing is lost."""

import json
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.text.calls.formats import FORMATS, arguments_schema, format_of
from octavo.text.calls.json_calls import JsonReader
from octavo.text.calls.reading import Call, Named, Reader, Said
from octavo.text.calls.untaught import told

NAMES = {"f", "get_weather", "a.b-c"}
Made = Callable[[], Reader]
READERS: dict[str, Made] = {
    **{name: lambda each=each: each.read(NAMES) for name, each in FORMATS.items()},
    **{
        f"{name}, enforced": lambda each=each: JsonReader(each.written.dialect, NAMES) for name, each in FORMATS.items()
    },
    "named": lambda: Named("f"),
}
Read = tuple[str, list[tuple[str, str]]]


def read(reader: Reader, pieces: list[str]) -> Read:
    """The content, and the calls: names and arguments."""
    content, calls = "", list[tuple[str, str]]()
    for said in map(reader.push, pieces):
        content += said.content
        for call in said.calls:
            if call.name is not None:
                assert call.index == len(calls), "calls are numbered as they come"
                calls.append((call.name, ""))
            assert call.index == len(calls) - 1, "a call that has ended goes on"
            calls[-1] = (calls[-1][0], calls[-1][1] + call.arguments)
    assert reader.num_calls == len(calls)
    return content + reader.finish(), calls


def in_order(reader: Reader, pieces: list[str]) -> list[str | Call]:
    """Content and calls, as they follow each other."""
    return ordered(reader, pieces)[0]


def ordered(reader: Reader, pieces: list[str]) -> tuple[list[str | Call], bool]:
    """The same, and whether the last call is incomplete."""
    all_of_it = Said()
    for part in [part for said in map(reader.push, pieces) for part in said.parts]:
        if isinstance(part, str):
            all_of_it.write(part)
        else:
            all_of_it.add(part)
    inside = reader.inside
    all_of_it.write(reader.finish())
    return all_of_it.parts, inside


def cut(text: str, places: list[int]) -> list[str]:
    bounds = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(bounds)]


ONE = [("f", '{"a": 1}')]
TWO = [("f", '{"a": 1}'), ("get_weather", "{}")]
CASES: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', "", ONE),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "", ONE),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}', "", ONE),
    ("hermes", 'Let me see.\n\n<tool_call>{"name":"f","arguments":{"a": 1}}</tool_call>', "Let me see.", ONE),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {}}\n</tool_call>\n',
        "",
        TWO,
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}, "id": {"x": "}"}}</tool_call> Done.', " Done.", ONE),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"s": "} </tool_call> \\" ]"}}</tool_call>',
        "",
        [("f", '{"s": "} </tool_call> \\" ]"}')],
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', "", [("f", '{"a": 1')]),
    ("llama3_json", ' {"name": "f", "parameters": {"a": 1}}', "", ONE),
    ("llama3_json", '<|python_tag|>{"type": "function", "name": "f", "parameters": {"a": 1}}', "", ONE),
    (
        "llama3_json",
        '{"name": "f", "parameters": {"a": 1}}; {"name": "get_weather", "parameters": {}}',
        "",
        TWO,
    ),
    ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]', "", ONE),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "get_weather"}]', "", TWO),
    ("mistral", 'Sure.[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]get_weather{}', "Sure.", TWO),
    ("mistral", '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": 1}', "", ONE),
    ("pythonic", "[f(a=1), get_weather()]", "", TWO),
    ("pythonic", "<|python_start|>[f(a=1)]<|python_end|>", "", ONE),
    (
        "pythonic",
        "[f(s='a)]\\'', t=[1, 2.5, None, True], u={'k': -1})] ok",
        " ok",
        [("f", '{"s": "a)]\'", "t": [1, 2.5, null, true], "u": {"k": -1}}')],
    ),
    ("pythonic, enforced", '[{"name": "f", "arguments": {"a": 1}}, {"name": "get_weather", "arguments": {}}]', "", TWO),
    ("named", '{"a": 1}', "", ONE),
]
CONTENT: list[tuple[str, str]] = [
    *((name, text) for name in FORMATS for text in ("", "  ", "Hello", " a < b [1] {2} ", "\n\n")),
    ("hermes", '{"name": "f", "arguments": {"a": 1}}'),
    ("hermes", '<tool_call>{"name": "unknown", "arguments": {"a": 1}}</tool_call>'),
    ("hermes", "a <tool_call>nothing</tool_call> <tool"),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": "no"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "argum'),
    ("hermes", '<tool_call>{"arguments": {"a": NaN}, "name": "f"}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"a": 1e999}, "name": "f"}</tool_call>'),
    ("llama3_json", '{"name": "unknown", "parameters": {}} and so on'),
    ("llama3_json", 'Use {"name": "f", "parameters": {}}'),
    ("mistral", '[{"name": "f", "arguments": {}}]'),
    ("mistral", "[TOOL_CALLS] none"),
    ("pythonic", "[1, 2]"),
    ("pythonic", "[]"),
    ("pythonic", "[f(1)]"),
    ("pythonic", "[f(a=b)]"),
    ("pythonic", "[f(**{'a': 1})]"),
    ("pythonic", "[f(a={1})]"),
    ("pythonic", "[f(a=1e999)]"),
    ("pythonic", "[unknown(a=1)]"),
    ("pythonic", "[f(a=1"),
    ("pythonic", "Call [f(a=1)]"),
]


@pytest.mark.parametrize(("form", "text", "content", "calls"), CASES)
def test_calls_are_read(form: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert read(READERS[form](), [text]) == (content, calls)
    assert read(READERS[form](), list(text)) == (content, calls)


@pytest.mark.parametrize(("form", "text"), CONTENT)
def test_what_is_no_call_is_content_as_it_stands(form: str, text: str) -> None:
    assert read(READERS[form](), [text]) == (text, [])
    assert read(READERS[form](), list(text)) == (text, [])


PARTS = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<|python_start|>", "[ARGS]", "<tool", "["),
    *(
        '{"name": "f", "arguments": {',
        '{"name": "f"',
        '"parameters": {"a": ',
        "f(a=",
        "a.b-c(",
        "f{",
        '{"arguments": {}',
    ),
    *(
        "{",
        "}",
        "]",
        ")",
        ",",
        ";",
        " ",
        "\n",
        '"',
        "'",
        "\\",
        "1",
        "a",
        "é",
        "\ud83d",
        "1e999",
        '{"name": "f"}',
        "f()",
    ),
]


@pytest.mark.parametrize("form", READERS)
@given(st.lists(st.sampled_from(PARTS), max_size=14).map("".join), st.lists(st.integers(0, 200), max_size=8))
def test_how_the_text_is_cut_changes_nothing(form: str, text: str, places: list[int]) -> None:
    for pieces in (cut(text, places), list(text)):
        assert read(READERS[form](), pieces) == read(READERS[form](), [text])
        assert ordered(READERS[form](), pieces) == ordered(READERS[form](), [text])


def test_content_and_calls_are_in_the_order_of_the_text() -> None:
    text = 'One. <tool_call>{"name": "f"}</tool_call> Two. <tool_call>{"name": "f"}</tool_call> Three.'
    assert in_order(READERS["hermes"](), [text]) == [
        "One.",
        Call(0, "f", "{}"),
        " Two.",
        Call(1, "f", "{}"),
        " Three.",
    ]


@pytest.mark.parametrize("form", READERS)
@given(st.lists(st.sampled_from(PARTS), max_size=14).map("".join))
def test_an_answer_without_calls_is_its_text(form: str, text: str) -> None:
    content, calls = read(READERS[form](), [text])
    assert calls or content == text


def test_content_is_held_back_only_where_it_may_begin_a_call() -> None:
    reader = FORMATS["hermes"].read(NAMES)
    said = [reader.push(piece).content for piece in ("Hi", " there", " <", "b>", " <tool", "_cal", "m", "\n")]
    assert said == ["Hi", " there", "", " <b>", "", "", " <tool_calm", ""]
    assert reader.finish() == "\n"


def test_arguments_are_streamed_as_they_come() -> None:
    reader = FORMATS["hermes"].read(NAMES)
    pieces = ['<tool_call>{"name": "f", "arguments": {', '"a": ', "[1, ", "2]", "}", "}</tool_call>"]
    said = [[call.arguments for call in reader.push(piece).calls] for piece in pieces]
    assert said == [["{"], ['"a": '], ["[1, "], ["2]"], ["}"], []]


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("", "hermes"),
        ("{{ tools }}<tool_call>", "hermes"),
        ("[AVAILABLE_TOOLS]{{ tools }}[TOOL_CALLS]", "mistral"),
        ("{{ tools }}<|python_tag|>", "llama3_json"),
        ('{"name": function name, "parameters": dictionary of argument name and its value}', "llama3_json"),
        ("[func_name1(params_name1=params_value1)]", "pythonic"),
    ],
)
def test_the_template_says_in_which_form_its_model_calls(template: str, form: str) -> None:
    assert format_of(template) == form


def test_a_function_without_parameters_takes_none() -> None:
    nothing = {"type": "object", "additionalProperties": False}
    for parameters in (None, {}, {"type": "object"}, {"type": "object", "properties": {}, "required": []}):
        assert arguments_schema(parameters) == nothing
    some = {"properties": {"a": {}}}
    assert arguments_schema(some) == {"type": "object", **some}
    assert arguments_schema({"$ref": "#/$defs/x"}) == {"type": "object", "$ref": "#/$defs/x"}


def test_a_model_that_knows_no_tools_is_told_of_them_in_words() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": "é"}}}
    messages = [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "1"},
    ]
    user, assistant, result = told(messages, [tool])
    assert user["role"] == "user" and json.dumps(tool) in user["content"] and user["content"].endswith("\n\nGo")
    assert assistant == {
        "role": "assistant",
        "content": '<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call>',
    }
    assert result == {"role": "user", "content": "<tool_response>\n2\n</tool_response>"}
    assert read(FORMATS["hermes"].read(NAMES), [assistant["content"]]) == ("", [("f", '{"a": "é"}')])
    system = told([{"role": "system", "content": "Be brief"}], [tool])[0]["content"]
    assert system.startswith("Be brief\n\n# Tools")
    assert told(messages[:1], None) == messages[:1]
