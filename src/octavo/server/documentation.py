"""GET /openapi.json and GET /docs: the API, described for programs and for people.

The page is HTML from here, with no script and nothing from other servers: it works offline and behind a key.
"""

from collections.abc import Mapping
from html import escape
from typing import Any

import msgspec

from octavo.server.exchange import Exchange
from octavo.server.service import Service


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
