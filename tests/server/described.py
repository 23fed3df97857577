"""The API's description, held against what a server answers: every answer that tests get through `Site.post` is."""

from functools import cache
from typing import Any

import httpx
import jsonschema_rs

from octavo.server.manners import manner_of
from octavo.server.openapi import describe
from octavo.server.routes import ROUTES, Route

DOCUMENT: dict[str, Any] = describe(ROUTES)
COMPONENTS = DOCUMENT["components"]


@cache
def _validator(reference: str) -> jsonschema_rs.Validator:
    """For what this JSON pointer into the document leads to."""
    return jsonschema_rs.Draft202012Validator({"$ref": reference, "components": COMPONENTS, "paths": DOCUMENT["paths"]})


def errors(schema: dict[str, Any], value: Any) -> list[str]:
    """What is wrong with a value, by a schema of the document."""
    whole = {**schema, "components": COMPONENTS}
    return [error.message for error in jsonschema_rs.Draft202012Validator(whole).iter_errors(value)]


def route_at(method: str, path: str) -> Route | None:
    """The route that answers this, as far as one does."""
    here = [route for route in ROUTES if route.method == method]
    exact = [route for route in here if route.path == path]
    below = [route for route in here if route.path.endswith("/") and path.startswith(route.path) and path != route.path]
    return next(iter(exact + below), None)


def check_described(response: httpx.Response, path: str) -> None:
    """Fails where an answer has a status, a type, a header of ours or a field that the document does not tell of."""
    route = route_at(response.request.method, path)
    if route is None:
        assert response.status_code in (401, 403, 404, 405), response.text
        return
    operation = DOCUMENT["paths"][route.label][route.method.lower()]
    status = str(response.status_code)
    assert status in operation["responses"], f"{route.path} does not tell of {status}: {response.text}"
    reference = operation["responses"][status].get("$ref")
    problem = reference is not None
    told = COMPONENTS["responses"][reference.rpartition("/")[2]] if problem else operation["responses"][status]
    ours = {name for name in response.headers if name.startswith("x-") and not name.startswith("x-accel")}
    assert problem or ours <= told["headers"].keys(), f"{route.path} does not tell of {ours - told['headers'].keys()}"
    media = response.headers["content-type"]
    if media.startswith("text/event-stream"):
        assert route.events is not None, route.path
        _check_events(response.text, route)
        return
    assert media in told["content"], f"{route.path} does not tell of {media}"
    if media == "application/json":
        place = reference if problem else f"#/paths/{_escaped(route.label)}/{route.method.lower()}/responses/{status}"
        _validator(f"{place}/content/application~1json/schema").validate(response.json())


def _check_events(text: str, route: Route) -> None:
    place = f"#/paths/{_escaped(route.label)}/{route.method.lower()}/responses/{route.status}"
    chunk = _validator(f"{place}/content/text~1event-stream/x-octavo-event")
    error = _validator(f"#/components/schemas/{manner_of(route.path).error.__name__}")
    for block in text.split("\n\n"):
        data = block.partition("data: ")[2]
        if data.startswith("{"):
            value = httpx.Response(200, text=data).json()
            (error if "error" in value else chunk).validate(value)


def _escaped(path: str) -> str:
    """A key as a part of a JSON pointer in a URL."""
    return path.replace("~", "~0").replace("/", "~1").replace("{", "%7B").replace("}", "%7D")
