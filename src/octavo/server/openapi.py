"""The API as an OpenAPI document: made from the routes, the request classes and the shapes of answers."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from octavo import __version__
from octavo.server.exchange import HEADERS
from octavo.server.manners import manner_of
from octavo.server.openai.codes import CODES
from octavo.server.openai.embedding_schema import EmbeddingRequest
from octavo.server.openai.schema import Body, CompletionRequest
from octavo.server.shapes import Error

if TYPE_CHECKING:
    from octavo.server.routes import Route

REFUSED = "x-octavo-refused"
"""In the schema of a body: fields that are known and not honoured, why, and values that are taken all the same."""
_REFERENCES = "#/components/schemas/{name}"
_JSON = "application/json"
_EVENTS = "text/event-stream"
"""The media type of a stream of events."""

OF_ALL = (400, 401, 403, 408, 431, 500)
"""What any route may answer."""
_WITH_A_BODY = (404, 413, 415, 503)
_GENERATING = (429, 504)
_STATUSES: Mapping[int, str] = {
    400: "The request cannot be answered as it is",
    401: "A key is needed",
    403: "Not for tenants",
    404: "There is no such thing here",
    408: "The request did not come in time",
    409: "Not while things are as they are",
    413: "The body is too long",
    415: "The body is not JSON",
    429: "A quota is used up",
    431: "The headers are too long",
    500: "Something went wrong in the server",
    503: "Not now",
    504: "The answer took too long",
}
_RETRY_AFTER = {"description": "Seconds after which it should work.", "schema": {"type": "integer", "minimum": 0}}


@cache  # it takes as long as all else that an app is made of
def describe(routes: "tuple[Route, ...]") -> dict[str, Any]:
    """The OpenAPI 3.1 document of these routes: one for all who ask, so not to be changed."""
    schemas: dict[str, Any] = {}
    errors = dict.fromkeys(manner_of(route.path).error for route in routes)
    told = {error: _shape(error, schemas) for error in errors}
    problems = {
        _problem_name(status, error): _problem(status, schema) for error, schema in told.items() for status in _STATUSES
    }
    schemas["Problem"]["properties"]["code"]["enum"] = list(CODES)
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.label, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": __version__, "description": "LLM inference over a paged KV cache."},
        "paths": paths,
        "security": [{}, {"bearer": []}, {"x-api-key": []}],
        "components": {
            "schemas": schemas,
            "responses": problems,
            "headers": {name: {"description": text, "schema": {"type": "string"}} for name, text in HEADERS.items()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _operation(route: "Route", schemas: dict[str, Any]) -> dict[str, Any]:
    answer = {"description": _sentence(route.answer), "headers": _headers(route), "content": _content(route, schemas)}
    error = manner_of(route.path).error
    names = {status: _problem_name(status, error) for status in _problems(route)}
    problems = {str(status): {"$ref": f"#/components/responses/{name}"} for status, name in names.items()}
    operation: dict[str, Any] = {
        "summary": (route.handler.__doc__ or "").strip().split("\n")[0],
        "operationId": getattr(route.handler, "__name__", route.path),
        "responses": {str(route.status): answer, **problems},
    }
    parameters = list(_parameters(route))
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": _body(route.body, schemas)}}}
    return operation


def _parameters(route: "Route") -> Iterator[dict[str, Any]]:
    if route.path.endswith("/"):
        yield {"name": route.names, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    for name, text in route.queries.items():
        yield {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}


def _problems(route: "Route") -> list[int]:
    with_a_body = _WITH_A_BODY if route.body is not None else ()
    generating = _GENERATING if route.generates else ()
    return sorted({*OF_ALL, *with_a_body, *generating, *route.problems})


def _headers(route: "Route") -> dict[str, Any]:
    names = list(dict.fromkeys(["x-request-id", manner_of(route.path).id_header]))
    if route.body is not None:
        names.append("x-octavo-unknown-fields")
    if route.generates and route.events is not None:
        names += ["x-octavo-seed", "x-octavo-max-tokens", "x-octavo-cache-miss"]
    if route.body in (CompletionRequest, EmbeddingRequest):
        names.append("x-octavo-controls-as-text")
    if route.generates:
        names += [name for name in HEADERS if name.startswith("x-ratelimit-")]
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _content(route: "Route", schemas: dict[str, Any]) -> dict[str, Any]:
    if route.media == _EVENTS:
        text = "For ever: events of the form `event: KIND`, `data: {...}`, and comments."
        return {_EVENTS: _events(route, text, schemas)}
    content: dict[str, Any] = {route.media: {"schema": _shape(route.answer, schemas)}}
    if route.events is not None:
        content[_EVENTS] = _events(route, f"With `stream: true`: {route.framing}.", schemas)
    return content


def _events(route: "Route", text: str, schemas: dict[str, Any]) -> dict[str, Any]:
    """As OpenAPI 3.1 has no word for streams, the schema is that of one event, which is how tools read it."""
    event = _shape(route.events, schemas)
    data = {"type": "string", "contentMediaType": _JSON, "contentSchema": event}
    fields = {"data": data, "event": {"type": "string"}, "id": {"type": "string"}}
    schema = {"type": "object", "properties": fields, "required": ["data"], "description": text}
    return {"schema": schema, "x-octavo-event": event}


def _problem_name(status: int, error: Any) -> str:
    """The status alone for OpenAI's form, which is that of most routes."""
    return str(status) if error is Error else f"{error.__name__}{status}"


def _problem(status: int, error: dict[str, Any]) -> dict[str, Any]:
    retries = {"retry-after": _RETRY_AFTER} if status in (409, 429, 503) else {}
    headers = {"x-request-id": {"$ref": "#/components/headers/x-request-id"}, **retries}
    return {"description": _STATUSES[status], "headers": headers, "content": {_JSON: {"schema": error}}}


def _shape(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """The schema of an answer. Where it names its fields, it has no others."""
    (schema,), components = msgspec.json.schema_components([kind], ref_template=_REFERENCES)
    for component in components.values():
        component["additionalProperties"] = False
    schemas.update(components)
    return schema


def _sentence(kind: Any) -> str:
    return "The answer" if kind in (str, dict) or not kind.__doc__ else kind.__doc__.strip().split("\n")[0]


def _body(body: type[Body], schemas: dict[str, Any]) -> dict[str, str]:
    schema = body.model_json_schema(ref_template=_REFERENCES.replace("name", "model"))
    schemas.update(schema.pop("$defs", {}))
    refused = {name: known for name, known in body.refused.items() if name not in body.model_fields}
    if refused:
        schema[REFUSED] = {name: {"why": known.why, "taken": [None, *known.neutral]} for name, known in refused.items()}
    schemas[body.__name__] = schema
    return {"$ref": _REFERENCES.format(name=body.__name__)}
