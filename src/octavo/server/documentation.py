"""The API, described: an OpenAPI document made from the routes and request classes, and one page for people.

The page is HTML from here, with no script and nothing from other servers: it works offline and behind a key.
"""

from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

import msgspec

from octavo import __version__
from octavo.server.exchange import Exchange
from octavo.server.openai.schema import Body
from octavo.server.service import Service

if TYPE_CHECKING:
    from octavo.server.app import Route

_REFERENCES = "#/components/schemas/{model}"
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def describe(routes: "Iterable[Route]") -> dict[str, Any]:
    """The OpenAPI 3.1 document of these routes."""
    schemas: dict[str, Any] = {"Error": _ERROR}
    paths: dict[str, Any] = {}
    for route in routes:
        path = f"{route.path}{{{route.names}}}" if route.path.endswith("/") else route.path
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": __version__, "description": "LLM inference over a paged KV cache."},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: "Route", schemas: dict[str, Any]) -> dict[str, Any]:
    problem = {"description": "What was wrong", "content": _content({"$ref": "#/components/schemas/Error"})}
    operation: dict[str, Any] = {
        "summary": (route.handler.__doc__ or "").strip().split("\n")[0],
        "operationId": getattr(route.handler, "__name__", route.path),
        "responses": {"200": {"description": "The answer"}, "4XX": problem, "5XX": problem},
    }
    if route.path.endswith("/"):
        operation["parameters"] = [{"name": route.names, "in": "path", "required": True, "schema": {"type": "string"}}]
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": _content(_schema(route.body, schemas))}
    return operation


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _schema(body: type[Body], schemas: dict[str, Any]) -> dict[str, str]:
    schema = body.model_json_schema(ref_template=_REFERENCES)
    schemas.update(schema.pop("$defs", {}))
    schemas[body.__name__] = schema
    return {"$ref": _REFERENCES.format(model=body.__name__)}


async def document(service: Service, exchange: Exchange) -> None:
    """The OpenAPI document of this server."""
    await exchange.reply(200, msgspec.json.encode(service.openapi))


async def page(service: Service, exchange: Exchange) -> None:
    """This API as a page for people."""
    await exchange.reply(200, html_page(service.openapi).encode(), media=b"text/html; charset=utf-8")


def html_page(document: Mapping[str, Any]) -> str:
    """The document as HTML."""
    schemas = document["components"]["schemas"]
    operations = [
        _html_operation(method, path, operation, schemas)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    title = f"Octavo {escape(document['info']['version'])}"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>"
        f"<p>The same as a file: <a href=openapi.json>openapi.json</a></p>{''.join(operations)}</html>"
    )


def _html_operation(method: str, path: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    head = f"<h2><b>{method.upper()}</b> <code>{escape(path)}</code></h2><p>{escape(operation['summary'])}</p>"
    body = operation.get("requestBody")
    if body is None:
        return head
    schema = schemas[body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]]
    required = schema.get("required", [])
    rows = [_html_row(name, field, name in required) for name, field in schema["properties"].items()]
    return f"{head}<details><summary>{len(rows)} fields</summary><table>{''.join(rows)}</table></details>"


def _html_row(name: str, field: Mapping[str, Any], required: bool) -> str:
    mark = " (required)" if required else ""
    text = escape(field.get("description", ""))
    return f"<tr><td><code>{escape(name)}</code>{mark}<td>{escape(_kind(field))}<td>{text}</tr>"


def _kind(field: Mapping[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(kind for kind in map(_kind, field["anyOf"]) if kind != "null")
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if field.get("type") == "array":
        return f"array of {_kind(field['items'])}"
    return str(field.get("type", "any"))


_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "h2{margin:2rem 0 0;font-size:1.1rem}b{color:#b4530a}table{border-collapse:collapse;font-size:.9rem}"
    "td{border-top:1px solid #8884;padding:.25rem .75rem .25rem 0;vertical-align:top}summary{cursor:pointer}"
)
