"""docs/reference/api.md, made from the OpenAPI document. `python -m octavo.server.reference` prints it."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from octavo.config.schema import settings
from octavo.server.exchange import HEADERS
from octavo.server.openai.codes import CODES
from octavo.server.openai.schema import DEFAULT_IN_WORDS, Sampling
from octavo.server.openapi import OF_ALL, REFUSED, describe
from octavo.server.routes import ROUTES

Schema = Mapping[str, Any]

_HEAD = """# HTTP API

Generated from the routes and request classes by `python -m octavo.server.reference`; tests keep it so, send each field
alone, and hold each answer against the OpenAPI document (`GET /openapi.json`, for people `GET /docs`).

Each field in these tables is honoured, or refused with a 400 that names it in `param`. Each optional one may be null:
that is as if it were not there. A field that is in no table is unknown: the header `x-octavo-unknown-fields` has its
name (a 400 with `--strict`). Limits in flags are the server's, their defaults in parentheses.
"""
_FIELDS = ("| field | value | default | effect |", "|---|---|---|---|")
_REFUSED = (
    "Some clients know these. They are a 400 that says why, unless null or a value that is taken: it asks for nothing."
)
_NUMBERS = {"integer": "an integer", "number": "a number"}
_KINDS = {"string": "text", "boolean": "true or false", "object": "an object", "array": "a list", **_NUMBERS}


def reference() -> str:
    """The whole page."""
    document = describe(ROUTES)
    schemas = document["components"]["schemas"]
    bodies = {route.body: schemas[route.body.__name__] for route in ROUTES if route.body is not None}
    shared = {kind: schema for kind, schema in bodies.items() if issubclass(kind, Sampling)}
    first = next(iter(shared.values()))
    told = {**{name: first["properties"][name] for name in Sampling.model_fields}, **first[REFUSED]}
    parts = {name: schemas[name] for body in bodies.values() for name in _named_in(body["properties"], schemas)}
    sections = (
        _routes(document),
        _all_that_generate(shared.values()),
        *(_body(schema, told) if kind in shared else _other(schema, told) for kind, schema in bodies.items()),
        ("", "## Parts of bodies"),
        *(_part(name, schema) for name, schema in parts.items()),
        _events(document),
        _headers(),
        _codes(),
    )
    return "\n".join([_HEAD.rstrip(), *(line for section in sections for line in section)]) + "\n"


def _routes(document: Schema) -> Iterator[str]:
    yield from ("", "## Routes", "")
    yield f"Any may answer {', '.join(map(str, OF_ALL))} too, and a path that is here 405 to another method."
    yield from ("", "| route | does | answers |", "|---|---|---|")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            statuses = ", ".join(status for status in operation["responses"] if int(status) not in OF_ALL)
            yield f"| {method.upper()} `{path}` | {_cell(operation['summary'])} | {statuses} |"


def _all_that_generate(bodies: Iterable[Schema]) -> Iterator[str]:
    """The fields that all of these have, and those that they all refuse."""
    first, *others = bodies
    yield from ("", f"## {' and '.join(_sentence(body) for body in (first, *others))}", "", *_FIELDS)
    yield from _rows(first, Sampling.model_fields)
    alone = [name for name in first[REFUSED] if not all(name in other[REFUSED] for other in others)]
    yield from _refused(first[REFUSED], {name: f" (only in {_sentence(first)})" for name in alone})


def _refused(refused: Schema, remarks: Mapping[str, str]) -> Iterator[str]:
    yield from ("", _REFUSED, "", "| field | why | taken |", "|---|---|---|")
    for name, known in refused.items():
        taken = ", ".join(_json(value) for value in known["taken"] if value is not None)
        yield f"| `{name}`{remarks.get(name, '')} | {_cell(known['why'])} | {taken} |"


def _body(schema: Schema, told: Schema) -> Iterator[str]:
    """A body's fields, but for those that were told of."""
    fields = schema["properties"]
    new = [name for name in fields if fields[name] != told.get(name)]
    yield from ("", f"## {_sentence(schema)}{': beside those' if len(new) < len(fields) - 1 else ''}", "", *_FIELDS)
    yield from _rows(schema, new)


def _other(schema: Schema, told: Schema) -> Iterator[str]:
    """The same of another protocol, and what it refuses by itself."""
    yield from _body(schema, told)
    refused = {name: known for name, known in schema.get(REFUSED, {}).items() if known != told.get(name)}
    if refused:
        yield from _refused(refused, {})


def _part(name: str, schema: Schema) -> Iterator[str]:
    yield from ("", f"### {name}", "")
    if "description" in schema:
        yield from (_sentence(schema), "")
    yield from _FIELDS
    yield from _rows(schema, schema["properties"])


def _rows(schema: Schema, names: Iterable[str]) -> Iterator[str]:
    required = schema.get("required", ())
    for name in names:
        field = schema["properties"][name]
        default = "required" if name in required else _default(field)
        yield f"| `{name}` | {_cell(_kind(field) + _range(field))} | {_cell(default)} | {_cell(_effect(field))} |"


def _default(field: Schema) -> str:
    if DEFAULT_IN_WORDS in field:
        return field[DEFAULT_IN_WORDS]
    return "none" if field.get("default") in (None, [], {}) else _json(field["default"])


def _effect(field: Schema) -> str:
    """What it does, with the defaults of the flags in it."""
    known = {setting.flag: setting for setting in settings().values() if setting.option.flag}

    def with_default(match: re.Match[str]) -> str:
        setting = known[match.group()]
        value = setting.option.none_means if setting.default is None else _json(setting.default).strip('`"')
        return f"`{match.group()}` ({value})"

    return re.sub(r"--[a-z][a-z-]+", with_default, field["description"])


def _kind(field: Schema) -> str:
    """What a value is, in words."""
    if "anyOf" in field:
        return " or ".join(kind for kind in map(_kind, field["anyOf"]) if kind != "null")
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in field or "enum" in field:
        return ", ".join(map(_json, field.get("enum") or [field["const"]]))
    if field.get("type") == "array":
        return f"a list: {_kind(field['items'])}" if field.get("items") else "a list"
    return _KINDS.get(field.get("type", ""), str(field.get("type", "any value")))


def _range(field: Schema) -> str:
    longest = next((each["maxLength"] for each in (field, *field.get("anyOf", ())) if "maxLength" in each), None)
    words = (
        (f"from {field['minimum']}" if "minimum" in field else ""),
        (f"above {field['exclusiveMinimum']}" if "exclusiveMinimum" in field else ""),
        (f"up to {field['maximum']}" if "maximum" in field else ""),
        (f"of at most {longest} characters" if longest else ""),
    )
    return "".join(f" {word}" for word in words if word)


def _named_in(properties: Schema, schemas: Schema) -> dict[str, None]:
    """The parts of a body, each before those within it."""
    found: dict[str, None] = {}
    for text in re.findall(r'"#/components/schemas/(\w+)"', msgspec.json.encode(properties).decode()):
        if text not in found:
            found[text] = None
            found |= _named_in(schemas[text].get("properties", {}), schemas)
    return found


def _events(document: Schema) -> Iterator[str]:
    """What /octavo/v1/events tells."""
    route = document["paths"]["/octavo/v1/events"]["get"]["responses"]["200"]["content"]["text/event-stream"]
    kinds = [document["components"]["schemas"][name] for name in _named_at_once(route["x-octavo-event"])]
    yield from ("", "## Events", "")
    yield "`GET /octavo/v1/events` tells these. Each has `kind`, `time` (seconds since 1970) and `seq` (its number)."
    yield from ("", "| kind | when | fields |", "|---|---|---|")
    for kind in kinds:
        names = [f"`{name}`" for name in kind["properties"] if name not in ("kind", "time", "seq")]
        yield f"| `{kind['properties']['kind']['enum'][0]}` | {_cell(_sentence(kind))} | {', '.join(names)} |"


def _named_at_once(schema: Schema) -> list[str]:
    """The parts that a choice of parts names itself."""
    return [part["$ref"].rpartition("/")[2] for part in schema["anyOf"]]


def _headers() -> Iterator[str]:
    yield from ("", "## Headers of answers", "", "| header | what it says |", "|---|---|")
    for name, text in HEADERS.items():
        yield f"| `{name}` | {_cell(text)} |"


def _codes() -> Iterator[str]:
    yield from ("", "## Errors", "")
    yield '`{"error": {"message", "type", "param", "code"}}`, as a body or as the last event of a stream that failed.'
    yield 'Below `/v1/messages`: `{"type": "error", "error": {"type", "message"}, "request_id"}`.'
    yield "`octavo explain error CODE` says the same."
    yield from ("", "| code | status | when | what to do |", "|---|---|---|---|")
    for name, code in CODES.items():
        statuses = ", ".join(map(str, code.statuses))
        yield f"| `{name}` | {statuses} | {_cell(code.meaning)} | {_cell(code.remedy)} |"


def _sentence(schema: Schema) -> str:
    return schema["description"].split("\n")[0].removesuffix(".")


def _json(value: object) -> str:
    return f"`{msgspec.json.encode(value).decode()}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.stdout.write(reference())
