"""Structured outputs of each kind: what follows them, what does not, and what is none."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from octavo.core.parameter import ParameterError
from octavo.core.ports import Guide
from octavo.core.structured import MAX_STRUCTURE_CHARS, MAX_STRUCTURE_DEPTH, Structure, StructuredOutput
from octavo.core.structured import StructuredOutputsParams as Params
from octavo.text.calls.formats import FORMATS
from octavo.text.calls.json_calls import JsonReader
from octavo.text.guide import Compiler
from octavo.text.lark import GrammarError
from octavo.text.tokenizer import Tokenizer, build_tokenizer
from tests.text.vocabularies import small_byte_level, small_sentencepiece

END = 1


KINDS = {"byte level": lambda: small_byte_level("smollm"), "sentencepiece": small_sentencepiece}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return build_tokenizer(KINDS[request.param]().tables)


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> Compiler:
    return Compiler(tokenizer, tokenizer.vocab_size)


@pytest.fixture
def fits(compiler: Compiler, tokenizer: Tokenizer):
    """Is this text a whole answer of this form, whether short tokens are preferred or long ones?"""

    def whole(params: Params, text: str) -> bool:
        short, long = (_walk(compiler.compile(params.output()), tokenizer, text.encode(), best) for best in (min, max))
        assert short == long
        return short

    return whole


def _walk(guide: Guide, tokenizer: Tokenizer, left: bytes, best: Callable[..., int]) -> bool:
    while left and not guide.complete:
        beginnings = [token for token in allowed(guide, tokenizer) if left.startswith(tokenizer.pieces[token])]
        if not beginnings:
            return False
        token = best(beginnings, key=lambda token: len(tokenizer.pieces[token]))
        left = left[len(tokenizer.pieces[token]) :]
        guide.accept(token)
        assert guide.fault is None
    return not left and (guide.complete or END in allowed(guide, tokenizer))


def allowed(guide: Guide, tokenizer: Tokenizer) -> list[int]:
    mask = guide.mask((END,))
    return [token for token in range(tokenizer.vocab_size) if mask[token >> 3] >> (token & 7) & 1]


POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "tag": {"enum": ["a", "é", "日本"]}},
    "required": ["x", "tag"],
    "additionalProperties": False,
}
CALL = {"structures": [{"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"}], "triggers": ["<f="]}


def tag_format(kind: str, **parts: Any) -> dict[str, Any]:
    return {"type": kind, **parts}


def const(text: str) -> dict[str, Any]:
    return tag_format("const_string", value=text)


ANY, WORD = tag_format("any_text"), tag_format("regex", pattern="[ab]+")
TRIGGERED: dict[str, Any] = {"triggers": ["<f="], "tags": [tag_format("tag", begin="<f=a>", content=WORD, end="</f>")]}
TABLE: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"json": POINT}, ['{"x":1,"tag":"a"}', '{"x": -20, "tag": "日本"}'], ['{"x":1}', '{"tag":"a","x":1}', "[1]", ""]),
    ({"json": json.dumps(POINT)}, ['{\n  "x": 1,\n  "tag": "é"\n}'], ['{"x":1,  "tag":"a"}', ' {"x":1,"tag":"a"}']),
    ({"json_object": True}, ["{}", '{"any": [1, {"b": null}]}'], ["[]", "3", '"x"']),
    ({"regex": "[a-c]{2}[0-9]+"}, ["ab1", "cc12345"], ["abc", "ab", "xab1", "ab1x"]),
    ({"regex": "^(yes|no)$"}, ["yes", "no"], ["yess", ""]),
    ({"choice": ["yes", "yes, sir", "no"]}, ["yes", "yes, sir", "no"], ["ye", "yes,", "maybe"]),
    ({"choice": ['he said "x"', "a\nb", "\\d", "😀", "\x7f\x00", "<|im_end|>"]}, ["\\d", "😀", "\x7f\x00"], ["d", "7"]),
    ({"choice": ["", "x"]}, ["", "x"], ["xx"]),
    ({"grammar": 'start: "a" item*\nitem: "b" | "c"'}, ["a", "abcb"], ["", "ba", "ad"]),
    ({"grammar": 'root ::= "a" item*\nitem ::= "b" | "c"'}, ["a", "abcb"], ["", "ba", "ad"]),
    ({"regex": 'a/b\n"c'}, ['a/b\n"c'], ["a\\/b"]),
    (
        {"structural_tag": {"format": tag_format("sequence", elements=[const("["), WORD, const("]")])}},
        ["[ab]"],
        ["[]", "[ab"],
    ),
    ({"structural_tag": {"format": tag_format("or", elements=[const("x"), ANY])}}, ["x", "anything"], []),
    (
        {"structural_tag": {"format": tag_format("tag", begin="<t>", content=ANY, end=["</t>", "<!>"])}},
        ["<t>so < far</t>", "<t><!>"],
        ["<t>so", "<t></t>x"],
    ),
    (
        {"structural_tag": {"format": tag_format("triggered_tags", **TRIGGERED, at_least_one=True)}},
        ["so <f=a>ab</f> and", "<f=a>ab</f>"],
        ["so", "<f=b>"],
    ),
    (
        {"structural_tag": {"format": tag_format("triggered_tags", **TRIGGERED, stop_after_first=True)}},
        ["so", "so <f=a>ab</f>"],
        ["<f=a>ab</f> and"],
    ),
    (
        {"structural_tag": {"format": tag_format("tags_with_separator", tags=TRIGGERED["tags"], separator=",")}},
        ["", "<f=a>ab</f>", "<f=a>ab</f>,<f=a>b</f>"],
        ["<f=a>ab</f>,", ","],
    ),
    ({"structural_tag": CALL}, ["so", "see <f=a>12</f> and", "<f=a>1</f><f=a>2</f>"], ["<f=a>x", "<f=b>", "<f=a>12"]),
]


@pytest.mark.parametrize(("given", "answers", "others"), TABLE, ids=lambda value: str(value)[:30])
def test_answers_of_each_kind(fits, given: dict[str, Any], answers: list[str], others: list[str]):
    for text in answers:
        assert fits(Params(**given), text), text
    for text in others:
        assert not fits(Params(**given), text), text


def test_control_tokens_are_no_text(compiler: Compiler, tokenizer: Tokenizer):
    """A form that has the letters of a control token has them as letters."""
    guide = compiler.compile(Params(regex="(.|\\n)*").output())
    mask = guide.mask(())
    controls = [token for token in range(tokenizer.vocab_size) if tokenizer.is_special(token)]
    assert controls and not any(mask[token >> 3] >> (token & 7) & 1 for token in controls)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"json": {"type": "notatype"}}, "notatype"),
        ({"json": {"not": {"type": "string"}}}, "not"),
        ({"json": {"type": "string", "format": "nonsense"}}, "nonsense"),
        ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"json": {"$ref": "#/$defs/gone"}}, "gone"),
        ({"json": {"$ref": "https://example.com/schema"}}, "example.com"),
        ({"json": {"type": "integer", "minimum": 3, "maximum": 2}}, "minimum"),
        ({"json": {"type": "string", "pattern": "(("}}, "unclosed"),
        ({"json": False}, "false"),
        ({"json": {"not": {}, "x-guidance": {"lenient": True}}}, "not"),
        ({"regex": "(a"}, "unclosed"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"regex": "a{0}"}, "empty"),
        ({"choice": [""]}, "empty"),
        ({"grammar": "start: missing"}, "missing"),
        ({"grammar": "start: start"}, "go on"),
        ({"grammar": "x ::= ("}, "GBNF"),
        ({"grammar": "nonsense"}, "nonsense|rule|start|Expected|grammar"),
        ({"structural_tag": {}}, "structures"),
        ({"structural_tag": {"structures": [{"begin": "<a>"}], "triggers": ["<b>"]}}, "<a>"),
        ({"structural_tag": {"structures": [5], "triggers": ["<b>"]}}, "structure must have `begin`"),
        ({"structural_tag": {"structures": [{"begin": "<a>"}]}}, "triggers"),
        ({"structural_tag": {"format": {"type": "poem"}}}, "any_text"),
        ({"structural_tag": {"format": tag_format("sequence", elements=[ANY, ANY])}}, "nothing can follow"),
        ({"structural_tag": {"format": tag_format("tag", begin="<a>", end=5, content=ANY)}}, "end"),
        ({"structural_tag": {"format": tag_format("json_schema", json_schema=5)}}, "object"),
    ],
    ids=str,
)
def test_what_is_no_form_is_told(compiler: Compiler, given: dict[str, Any], words: str):
    with pytest.raises(GrammarError, match=words) as caught:
        compiler.compile(Params(**given).output())
    assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "structured_outputs"),
        ({"regex": "a", "choice": ["b"]}, "structured_outputs"),
        ({"json_object": False}, "structured_outputs"),
        ({"json_object": 1}, "structured_outputs.json_object"),
        ({"json": "{"}, "structured_outputs.json"),
        ({"json": "[" * 100_000}, "structured_outputs.json"),
        ({"json": "5"}, "structured_outputs.json"),
        ({"json": {"enum": [{1, 2}]}}, "structured_outputs.json"),
        ({"json": {"const": float("nan")}}, "structured_outputs.json"),
        ({"json": {"const": "\ud800"}}, "structured_outputs.json_schema"),
        ({"regex": ""}, "structured_outputs.regex"),
        ({"regex": "\ud800"}, "structured_outputs.regex"),
        ({"choice": []}, "structured_outputs.choice"),
        ({"choice": "yes"}, "structured_outputs.choice"),
        ({"choice": ["a", 1]}, "structured_outputs.choice"),
        ({"grammar": 5}, "structured_outputs.grammar"),
        ({"regex": "a" * (MAX_STRUCTURE_CHARS + 1)}, "structured_outputs.regex"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], field: str):
    with pytest.raises(ParameterError) as caught:
        Params(**given)
    assert caught.value.field == field


def test_a_schema_is_as_deep_as_it_may_be():
    deep: dict[str, Any] = {}
    for _ in range(MAX_STRUCTURE_DEPTH - 1):
        deep = {"items": deep}
    Params(json=deep)
    with pytest.raises(ParameterError, match="levels"):
        Params(json={"items": deep})


def test_equal_forms_are_equal_values():
    assert Params(json={"type": "object"}).output() == Params(json='{"type": "object"}').output()
    assert hash(Params(choice=["a"]).output()) == hash(Params(choice=("a",)).output())
    assert StructuredOutput(Structure.JSON_OBJECT) == Params(json_object=True).output()


TOOLS = {
    "f": {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False},
    "g": {"type": "object", "additionalProperties": False},
}
HERMES = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
LLAMA = '{"name": "f", "parameters": {"a": 1}}'
WRITTEN = {"hermes": (HERMES, f"{HERMES}\n{HERMES}"), "llama3_json": (LLAMA, f"{LLAMA}; {LLAMA}")}
ARRAY = (
    '[{"name": "f", "arguments": {"a": 1}}]',
    '[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
)


@pytest.mark.parametrize("several", [True, False], ids=["several", "one"])
@pytest.mark.parametrize("name", FORMATS)
def test_tool_calls_that_are_enforced(fits, name: str, several: bool):
    written, (one, two) = FORMATS[name].written, WRITTEN.get(name, ARRAY)
    demanded = Params(structural_tag={"format": written.calls(TOOLS, several=several)})
    free = Params(structural_tag={"format": written.free(TOOLS, several=several)})
    for form in (demanded, free):
        assert fits(form, one) and fits(form, two) is several
        assert not any(
            fits(form, text) for text in (one.replace("1", "2"), one.replace('"f"', '"h"'), one[:12] + "junk")
        )
    assert not any(fits(demanded, text) for text in ("", f"Hi {one}", f"{one} x"))
    assert all(fits(free, text) for text in ("", "Hello { [ there", "1 < 2"))
    for text, count in ((one, 1), (two, 2)):
        said = JsonReader(written.dialect, TOOLS.keys()).push(text)
        assert said.content == "" and said.calls[0].arguments == '{"a": 1}'
        assert len(said.calls) == count
