"""Random schemas, random walks: what may end is valid. And whatever comes as a form is one, or is refused."""

import json
import random
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.parameter import ParameterError
from octavo.core.structured import StructuredOutputsParams as Params
from octavo.text.guide import Compiler, LLGuide
from octavo.text.lark import GrammarError
from octavo.text.trial import ByteVocabulary

END = 256
COMPILER = Compiler(ByteVocabulary(), END + 1)
FORMATS = [name for name in jsonschema.FormatChecker.checkers if name != "time"]  # for `time` it wants no time zone
CHECKER = jsonschema.FormatChecker(FORMATS)
DEFS = {
    "list": {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "null"}]}},
        "required": ["v", "next"],
        "additionalProperties": False,
    },
    "word": {"enum": ["q1", "q2"]},
}

plain = st.sampled_from(["string", "integer", "number", "boolean", "null"]).map(lambda name: {"type": name})
values = st.sampled_from([1, 2.5, "a", 'é\n"', None, True, [1, "x"], {"k": []}, "日本", -0.0, 1e10, "\u2028"])
enums = st.lists(values, min_size=1, max_size=4).map(lambda of: {"enum": of}) | values.map(lambda of: {"const": of})
patterns = st.sampled_from(["^a+$", "b", r"^[A-Z]{2}\d{3}$", "(x|yz)*$", r"^\w{1,3}-\S$", "^é?$"])
formats = st.sampled_from(["date", "time", "date-time", "email", "ipv4", "ipv6", "uuid", "hostname", "duration", "uri"])
texts = st.one_of(
    patterns.map(lambda pattern: {"type": "string", "pattern": pattern}),
    formats.map(lambda name: {"type": "string", "format": name}),
    st.tuples(st.integers(0, 4), st.integers(0, 3)).map(
        lambda of: {"type": "string", "minLength": of[0], "maxLength": sum(of)}
    ),
)
numbers = st.builds(
    lambda kind, low, low_name, width, high_name: {"type": kind, low_name: low, high_name: low + width},
    st.sampled_from(["integer", "number"]),
    st.sampled_from([-10, 0, 3, -1.5, 99]),
    st.sampled_from(["minimum", "exclusiveMinimum"]),
    st.sampled_from([0, 1, 7, 100.25, 1000]),
    st.sampled_from(["maximum", "exclusiveMaximum"]),
)
vast = st.builds(
    lambda low, low_name, width, high_name: {"type": "integer", low_name: low, high_name: low + width},
    st.sampled_from([2**53, 2**53 + 1, 2**63 - 2, 2**63, 2**64 - 1, -(2**63), -(2**63) - 1, 10**20, -(10**400)]),
    st.sampled_from(["minimum", "exclusiveMinimum"]),
    st.sampled_from([0, 1, 7, 10**19, 10**400]),
    st.sampled_from(["maximum", "exclusiveMaximum"]),
)
"""Bounds that a double cannot hold, or 64 bits."""
multiples = st.sampled_from([2, 3, 0.5, 10]).map(
    lambda step: {"type": "number", "multipleOf": step, "minimum": 0, "maximum": 100}
)
references = st.sampled_from([{"$ref": "#/$defs/list"}, {"$ref": "#/$defs/word"}])
leaves = plain | enums | texts | numbers | vast | multiples | references


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    properties = draw(
        st.dictionaries(st.sampled_from(["a", "b", "long name", "é", "x1", '"', "enum", "minimum"]), inner, max_size=3)
    )
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    schema["required"] = [name for name in properties if draw(st.booleans())]
    if draw(st.integers(0, 3)):
        schema["additionalProperties"] = draw(st.just(False) | inner)
    if not draw(st.integers(0, 5)):
        schema["patternProperties"] = {"^x": draw(inner)}
    if not draw(st.integers(0, 5)):
        schema["maxProperties"] = draw(st.integers(1, 3))
    return schema


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array", "items": draw(inner)}
    if draw(st.booleans()):
        schema["minItems"] = draw(st.integers(0, 3))
        schema["maxItems"] = schema["minItems"] + draw(st.integers(0, 2))
    if not draw(st.integers(0, 3)):
        schema["prefixItems"] = draw(st.lists(inner, min_size=1, max_size=2))
    return schema


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    names = st.sampled_from(["anyOf", "anyOf", "oneOf", "allOf"])
    return objects(inner) | arrays(inner) | st.builds(lambda name, of: {name: of}, names, several)


schemas = st.recursive(leaves, nested, max_leaves=6)


def walked(guide: LLGuide, chance: random.Random) -> str | None:
    """A random answer, with what closes preferred; None where it does not come to its end soon."""
    answer = bytearray()
    while not guide.complete and len(answer) < 300:
        assert guide.fault is None, (guide.fault, bytes(answer))
        mask = guide.mask((END,))
        allowed = [byte for byte in range(256) if mask[byte >> 3] >> (byte & 7) & 1]
        if mask[END >> 3] and chance.random() < 0.5:
            return answer.decode()
        closing = [byte for byte in allowed if byte in b'"}],:012aex'] or allowed
        answer.append(chance.choice(closing if chance.random() < 0.8 else allowed))
        guide.accept(answer[-1])
    return answer.decode() if guide.complete else None


@settings(max_examples=150)
@given(schemas, st.integers(0, 2**32))
def test_what_may_end_is_valid(schema: dict[str, Any], seed: int):
    whole = {**schema, "$defs": DEFS}
    try:
        guide = COMPILER.compile(Params(json=whole).output())
    except GrammarError:
        return
    chance = random.Random(seed)
    for _ in range(3):
        answer = walked(guide.fork(), chance)
        if answer is not None:
            jsonschema.Draft202012Validator(whole, format_checker=CHECKER).validate(json.loads(answer))
            between = re.sub(r'"(\\.|[^"\\])*"', '""', answer)
            assert max(map(len, re.findall(r"\s+", between)), default=0) <= 17


@pytest.mark.slow
@settings(max_examples=5000)
@given(schemas, st.integers(0, 2**32))
def test_what_may_end_is_valid_at_length(schema: dict[str, Any], seed: int):
    test_what_may_end_is_valid.hypothesis.inner_test(schema, seed)


# -- anything at all ---------------------------------------------------------------------------------------------------

SCRAPS = (
    r"""start : | ( ) * + ? {1,3} [a-z] \d ^ $ . "a" /b+/ %json { } %ignore A ::= root [^ ] \ é [lazy] ~ & @x %import"""
)
pieces = st.sampled_from([*SCRAPS.split(" "), "\n", " ", " common.INT"])
nonsense = st.lists(pieces, max_size=12).map("".join) | st.text(max_size=20)
KEYWORDS = """type items properties anyOf $ref enum pattern minItems maxLength format required additionalProperties not
x-guidance $defs const $id $schema multipleOf prefixItems"""
keywords = st.sampled_from(KEYWORDS.split())
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats(allow_nan=False) | st.text(max_size=6) | pieces,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keywords | st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
marks = st.sampled_from(["<a>", "<a", "</a>", "", ","])
tag_formats = st.recursive(
    st.sampled_from(
        [
            {"type": "any_text"},
            {"type": "const_string", "value": "x"},
            {"type": "regex", "pattern": "[ab]{1,3}"},
            {"type": "json_schema", "json_schema": {"enum": [1, "two"]}},
        ]
    ),
    lambda inner: st.one_of(
        st.builds(
            lambda kind, of: {"type": kind, "elements": of}, st.sampled_from(["sequence", "or"]), st.lists(inner)
        ),
        st.builds(
            lambda kind, tags, trigger, flags: {"type": kind, "tags": tags, "triggers": [trigger], **flags},
            st.sampled_from(["triggered_tags", "tags_with_separator"]),
            st.lists(st.fixed_dictionaries({"begin": marks, "content": inner, "end": marks | st.lists(marks)})),
            marks,
            st.dictionaries(st.sampled_from(["at_least_one", "stop_after_first"]), st.booleans()),
        ).map(lambda given: {**given, "separator": ","}),
        st.builds(
            lambda begin, of, end: {"type": "tag", "begin": begin, "content": of, "end": end}, marks, inner, marks
        ),
    ),
    max_leaves=5,
)
anything = st.one_of(
    tag_formats.map(lambda given: {"structural_tag": {"format": given}}),
    nonsense.map(lambda text: {"regex": text}),
    nonsense.map(lambda text: {"grammar": text}),
    st.lists(st.text(max_size=10), max_size=4).map(lambda texts: {"choice": texts}),
    st.dictionaries(keywords, json_values, max_size=4).map(lambda schema: {"json": schema}),
    st.fixed_dictionaries(
        {"structural_tag": st.dictionaries(st.sampled_from(["structures", "triggers"]), json_values)}
    ),
)


@settings(max_examples=400)
@given(anything)
def test_anything_is_a_form_or_is_refused(given: dict[str, Any]):
    try:
        guide = COMPILER.compile(Params(**given).output())
    except (ParameterError, GrammarError) as error:
        assert str(error)
        return
    walked(guide, random.Random(1))
