"""Each field of each endpoint, alone: it shows its effect, or is refused by name. Null is as if it were not there.

The fields come from the request classes and what they do from `effects.py`: a field without an entry is a failure.
"""

import copy
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from octavo.models.checkpoint import Checkpoint
from octavo.server.openai.schema import Body
from octavo.server.routes import ROUTES
from tests.server.described import COMPONENTS, errors
from tests.server.effects import (
    ABSENT,
    GREEDY,
    LETTERS,
    SPELLED,
    TAGGED,
    Answered,
    Effect,
    Endpoint,
    Fields,
    nothing,
)
from tests.server.endpoints import ENDPOINTS
from tests.server.site import Site, running

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}{{ extra }}"
    "{% for each in documents or [] %}{{ each.text }}{% endfor %}"
    "{% for each in tools or [] %}{{ each.function.name + each.function.description }}{{ each.function.parameters }}"
    "{{ each.function.input_examples }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BODIES = {route.path: route.body for route in ROUTES if route.body is not None}
EVENTS = {route.path for route in ROUTES if route.events is not None}


@pytest.fixture(scope="module")
def rich(checkpoint: Checkpoint) -> Iterator[Site]:
    """A server whose template shows all that it is given, and whose tokenizer begins with a BOS. Prompts are cached."""
    vocabulary = dataclasses.replace(checkpoint.vocabulary, add_bos=True, chat_template=TEMPLATE)
    with running(dataclasses.replace(checkpoint, vocabulary=vocabulary)) as site:
        for endpoint in ENDPOINTS:
            assert site.post(endpoint.path, dict(endpoint.body)).status_code < 300
        yield site


def fields_of(kind: type[BaseModel], above: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of a request, and those within them as `stream_options.include_usage` or `tools[].type`."""
    for name, field in kind.model_fields.items():
        path = above + (field.alias or name)
        yield path, field
        for inner, ending in parts(field.annotation, "."):
            yield from fields_of(inner, path + ending)


def parts(annotation: Any, ending: str) -> Iterator[tuple[type[BaseModel], str]]:
    """The objects that may stand in a field, with what leads to their own fields."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, ending
    for each in get_args(annotation):
        yield from parts(each, "[]." if getattr(annotation, "__origin__", None) is list else ending)


def schema_of(kind: type[Body], path: str) -> dict[str, Any]:
    """What the OpenAPI document says of the field."""
    schema = COMPONENTS["schemas"][kind.__name__]
    for part in path.replace("[]", "").split("."):
        within = [each for each in with_branches(schema) if part in each.get("properties", ())]
        schema = within[0]["properties"][part]
    return schema


def with_branches(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A schema, and all that it may be instead."""
    yield schema
    if "$ref" in schema:
        yield from with_branches(COMPONENTS["schemas"][schema["$ref"].rpartition("/")[2]])
    for each in (*schema.get("anyOf", ()), schema.get("items")):
        if each:
            yield from with_branches(each)


def only_value(schema: dict[str, Any]) -> bool:
    """Is there nothing to choose? Then the test of wrong values is all there is to show."""
    values = [
        value
        for each in with_branches(schema)
        for value in each.get("enum", [each["const"]] if "const" in each else [])
    ]
    kinds = {each.get("type") for each in with_branches(schema)} - {"null"}
    return len(values) == 1 or kinds == set() or (kinds == {None} and not values)


PLACES = [(endpoint, path, field) for endpoint in ENDPOINTS for path, field in fields_of(BODIES[endpoint.path])]
FIRST = {id(field): endpoint.path for endpoint, _, field in reversed(PLACES)}
FIELDS = [
    pytest.param(endpoint, path, id=f"{endpoint.path}-{path}")
    for endpoint, path, field in PLACES
    if "." not in path or FIRST[id(field)] == endpoint.path
]
"""Those at the top of each endpoint; those within others once, however many endpoints have them."""
EFFECTS = [
    pytest.param(endpoint, path, effect, id=f"{endpoint.path}-{path}")
    for endpoint in ENDPOINTS
    for path, effect in endpoint.effects.items()
]


def test_each_route_with_a_body_has_a_table() -> None:
    assert [endpoint.path for endpoint in ENDPOINTS if endpoint.path not in BODIES] == []
    missing = BODIES.keys() - {endpoint.path for endpoint in ENDPOINTS}
    assert not missing, (
        f"tests/server/effects.py says what the fields of each endpoint do: add an Endpoint for {missing}"
    )


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.path)
def test_each_field_has_an_entry(endpoint: Endpoint) -> None:
    kind = BODIES[endpoint.path]
    due = {path for path, _ in fields_of(kind) if not only_value(schema_of(kind, path))}
    missing, gone = due - endpoint.effects.keys(), endpoint.effects.keys() - {path for path, _ in fields_of(kind)}
    assert not missing, f"add an Effect for each to the table of {endpoint.path} in tests/server/effects.py: {missing}"
    assert not gone, f"no fields of {endpoint.path}: {gone}"


def test_the_tables_know_their_model(rich: Site) -> None:
    spelled = [rich.tokenizer.encode(letter, add_special_tokens=False) for letter in f"{SPELLED}<"]
    assert spelled == [[token] for token in (*LETTERS["allowed_token_ids"], *map(int, TAGGED["logit_bias"]))]


def asked(site: Site, endpoint: Endpoint, body: dict[str, Any]) -> Answered:
    return Answered.of(site.post(endpoint.path, body))


@pytest.mark.parametrize(("endpoint", "path", "effect"), EFFECTS)
def test_a_field_shows_its_effect(rich: Site, endpoint: Endpoint, path: str, effect: Effect) -> None:
    """In the order that shows what a cache keeps: first without it."""
    name = top(path)
    other = asked(rich, endpoint, endpoint.request(effect, name, effect.other))
    given = asked(rich, endpoint, endpoint.request(effect, name, effect.value))
    check_shown(effect, name, given, other)
    if endpoint.path.endswith("/pins"):
        rich.forget_pins()


def check_shown(effect: Effect, name: str, given: Answered, other: Answered) -> None:
    assert effect.shows(given, other), f"{given.body}\n{other.body}"
    if given.status == 400:
        assert given.error["param"].startswith(name)


def top(path: str) -> str:
    """The field at the top of a body."""
    return path.partition(".")[0].removesuffix("[]")


@pytest.mark.parametrize(
    ("endpoint", "path", "effect"),
    [each for each in EFFECTS if each.values[0].path in EVENTS and each.values[2].streams],
)
def test_a_field_shows_its_effect_in_a_stream(rich: Site, endpoint: Endpoint, path: str, effect: Effect) -> None:
    """The events add up to an answer that shows the same."""
    name = top(path)
    if name.startswith("stream"):
        return
    other, given = (
        asked(rich, endpoint, {**endpoint.request(effect, name, value), **endpoint.streamed})
        for value in (effect.other, effect.value)
    )
    check_shown(effect, name, given, other)


def place(value: Any, path: str) -> tuple[Any, str] | None:
    """The object within a field's value that has what `path` leads to, and its name there; None where it is not."""
    parts = path.split(".")
    for part, following in itertools.pairwise(parts):
        if part != parts[0]:
            value = value.get(part.removesuffix("[]")) if isinstance(value, dict) else None
        if part.endswith("[]"):
            value = value[0] if isinstance(value, list) and value else None
        if not isinstance(value, dict) or following is None:
            return None
    return value, parts[-1].removesuffix("[]")


def body_with(endpoint: Endpoint, path: str, new: Any) -> dict[str, Any]:
    """A request that is as it should be, but for `new` in the place that `path` leads to; ABSENT: nothing is there."""
    name = top(path)
    if path == name:
        effect = endpoint.effects.get(path) or Effect(None)
        return endpoint.request(dataclasses.replace(effect, among=_only_needed(effect)), name, new)
    own = {path: endpoint.effects[path]} if path in endpoint.effects else {}
    for other, effect in {**own, **endpoint.effects}.items():
        value = copy.deepcopy(effect.value)
        found = place(value, path) if top(other) == name else None
        if found is not None:
            _put(*found, new)
            return endpoint.request(effect, name, value)
    raise AssertionError(f"no effect of {endpoint.path} has a place for {path}")


def certain(endpoint: Endpoint, path: str, new: Any) -> dict[str, Any]:
    """The same, so that nothing is left to chance, where there is a choice."""
    drawn = "temperature" in BODIES[endpoint.path].model_fields and path != "temperature"
    return {**body_with(endpoint, path, new), **(GREEDY if drawn else {})}


def _only_needed(effect: Effect) -> dict[str, Any]:
    """What must not be sent beside the field, and what it cannot be without."""
    return {name: value for name, value in effect.among.items() if value is ABSENT or name == "messages"}


def _put(where: dict[str, Any], name: str, value: Any) -> None:
    if value is ABSENT:
        where.pop(name, None)
    else:
        where[name] = value


KINDS: list[Any] = ["x", 5, 1.5, True, [], {}]
WITHIN: list[Any] = [[[]], [{}], ["x"], [1.5], {"x": "y"}]
"""Values of all kinds, of which each field must refuse those that its schema does not have."""


@pytest.mark.parametrize(("endpoint", "path"), FIELDS)
def test_a_value_of_another_kind_is_refused_by_name(rich: Site, endpoint: Endpoint, path: str) -> None:
    schema = schema_of(BODIES[endpoint.path], path)
    holds = any(each.get("type") in ("array", "object") or "properties" in each for each in with_branches(schema))
    wrong = [value for value in (*KINDS, *(WITHIN if holds else ())) if errors(schema, value)]
    assert wrong
    for value in wrong:
        answer = asked(rich, endpoint, body_with(endpoint, path, value))
        assert answer.status == 400, f"{value!r}: {answer.body}"
        param = answer.error["param"].replace("[0]", "[]")
        assert param.startswith(path.removesuffix("[]")) or path.startswith(param), f"{value!r}: {answer.error}"
        assert param.rpartition(".")[2].removesuffix("[]") in answer.error["message"]


@pytest.mark.parametrize(("endpoint", "path"), FIELDS)
def test_null_is_as_if_it_were_not_there(rich: Site, endpoint: Endpoint, path: str) -> None:
    """And what must be there is missed by name."""
    absent, null = (asked(rich, endpoint, certain(endpoint, path, value)) for value in (ABSENT, None))
    kind = BODIES[endpoint.path]
    required = dict(fields_of(kind))[path].is_required()
    if required:
        name = path.rpartition(".")[2].removesuffix("[]")
        for answer in (absent, null):
            assert answer.status == 400, answer.body
            param = answer.error["param"].replace("[0]", "[]")
            assert (param == path or path.startswith(param)) and name in answer.error["message"], answer.error
    else:
        assert null.seen == absent.seen
        assert "x-octavo-unknown-fields" not in null.headers


def default_of(endpoint: Endpoint, path: str) -> Any:
    return schema_of(BODIES[endpoint.path], path).get("default")


@pytest.mark.parametrize(
    ("endpoint", "path"), [each for each in FIELDS if default_of(each.values[0], each.values[1]) is not None]
)
def test_a_default_is_what_leaving_it_out_means(rich: Site, endpoint: Endpoint, path: str) -> None:
    absent, given = (
        asked(rich, endpoint, certain(endpoint, path, value)) for value in (ABSENT, default_of(endpoint, path))
    )
    assert given.seen == absent.seen


LIMITS = ("minimum", "exclusiveMinimum", "maximum")


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [each for each in FIELDS if any(name in schema_of(BODIES[each.values[0].path], each.values[1]) for name in LIMITS)],
)
def test_a_range_is_as_it_is_told(rich: Site, endpoint: Endpoint, path: str) -> None:
    """What is beyond its ends is refused by name. At an end it may be refused for another reason, and says so."""
    schema = schema_of(BODIES[endpoint.path], path)
    step = 1 if "number" not in str(schema) else 0.001
    ends = [schema[name] for name in ("minimum", "maximum") if name in schema]
    beyond = [
        *([schema["minimum"] - step] if "minimum" in schema else []),
        *([schema["exclusiveMinimum"]] if "exclusiveMinimum" in schema else []),
        *([schema["maximum"] + step] if "maximum" in schema else []),
    ]
    for value in (*beyond, *ends):
        answer = asked(rich, endpoint, {**body_with(endpoint, path, value), **needed(endpoint, path)})
        if value in beyond:
            assert answer.status == 400 and answer.error["param"] == path, f"{value}: {answer.body}"
        else:
            assert answer.status < 300 or "must be a" not in answer.error["message"], f"{value}: {answer.body}"


def needed(endpoint: Endpoint, path: str) -> Fields:
    return endpoint.needs.get(path, {})


def test_what_has_no_effect_is_said_to_have_none() -> None:
    for endpoint in ENDPOINTS:
        for path, effect in endpoint.effects.items():
            if effect.shows is nothing:
                said = schema_of(BODIES[endpoint.path], path)["description"]
                assert said.startswith(SAID_TO_BE_NOTHING) or endpoint.path in UNCHECKED, (
                    f"{endpoint.path} {path}: {said}"
                )


SAID_TO_BE_NOTHING = ("No effect", "What the schema is called")
UNCHECKED = ("/tokenize", "/octavo/v1/explain", "/octavo/v1/pins", "/v1/messages/count_tokens")
"""There nothing is generated: a tool is only shown to the template, which is not told whether it is strict."""


@pytest.mark.parametrize("path", [path for path, kind in BODIES.items() if kind.refused])
def test_what_is_known_and_not_here_is_refused_by_name(rich: Site, path: str) -> None:
    """But for values that ask for what happens anyway, and null."""
    (endpoint,) = (each for each in ENDPOINTS if each.path == path)
    kind, plain = BODIES[path], asked(rich, endpoint, dict(endpoint.body))
    for name, known in kind.refused.items():
        if name in kind.model_fields:
            continue
        answer = asked(rich, endpoint, {**endpoint.body, name: {"some": "value"}})
        assert answer.status == 400, f"{name}: {answer.body}"
        assert answer.error["code"] in ("unsupported_parameter", None), "its form has codes, or no place for one"
        assert answer.error["param"] == name and name in answer.error["message"]
        for value in (None, *known.neutral):
            taken = asked(rich, endpoint, {**endpoint.body, name: value})
            assert taken.seen == plain.seen, f"{name} {value!r}: {taken.body}"


def takes_ids(schema: dict[str, Any]) -> bool:
    """Are integers in a list, or names of an object with numbers, what the field is about?"""
    return any(
        each.get("items", {}).get("type") == "integer" or each.get("additionalProperties", {}) == {"type": "number"}
        for each in with_branches(schema)
        if isinstance(each.get("items", {}), dict) and isinstance(each.get("additionalProperties", {}), dict)
    )


@pytest.mark.parametrize(
    ("endpoint", "path"), [each for each in FIELDS if takes_ids(schema_of(BODIES[each.values[0].path], each.values[1]))]
)
def test_an_id_outside_the_vocabulary_is_refused_by_name(rich: Site, endpoint: Endpoint, path: str) -> None:
    limit = rich.app.service.facts.capacity.vocab_size
    biases = "bias" in path
    for token in (-1, limit, 2**31, 2**64, -(2**63), 10**30):
        forms: list[Any] = [{str(token): 1}] if biases else [[token], [5, token]]
        if any("items" in each.get("items", {}) for each in with_branches(schema_of(BODIES[endpoint.path], path))):
            forms.append([[5], [6, token]])
        for value in forms:
            answer = asked(rich, endpoint, body_with(endpoint, path, value))
            assert answer.status == 400, f"{value}: {answer.body}"
            assert answer.error["param"].startswith(path) and path in answer.error["message"]
            named = str(limit - 1) if 0 <= token < 10**18 or not biases else "token ids"
            assert named in answer.error["message"], answer.error


def test_fields_that_take_ids_are_found() -> None:
    found = {
        path
        for endpoint in ENDPOINTS
        for path, _ in fields_of(BODIES[endpoint.path])
        if takes_ids(schema_of(BODIES[endpoint.path], path))
    }
    assert {"prompt", "input", "tokens", "token_ids", "stop_token_ids", "allowed_token_ids", "logit_bias"} <= found
