"""The app: one place where every request finds its route, begins, and every failure gets its answer."""

import logging
import time
from collections.abc import Mapping
from typing import Any

from starlette.middleware.cors import CORSMiddleware

from octavo.config.logs import Caller, working_for
from octavo.config.schema import Config
from octavo.engine.client import EngineClient, EngineDead
from octavo.server import openapi
from octavo.server.auth import check_operator
from octavo.server.exchange import HEADERS, ClientGone, Exchange, Receive, Scope, Send
from octavo.server.journal import shown
from octavo.server.openai.errors import ApiError, engine_dead, internal_error
from octavo.server.routes import ROUTES, Handler, Route, meant
from octavo.server.service import Service
from octavo.server.visits import NO_ROUTE
from octavo.text.chat import ChatTemplate
from octavo.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "OPTIONS"})


def build_app(
    client: EngineClient,
    tokenizer: Tokenizer,
    chat_template: ChatTemplate | None,
    settings: Config,
    origins: Mapping[str, Any] | None = None,
) -> "App":
    """The ASGI app in front of one engine, which may still be loading. It needs nothing else, and holds no socket."""
    return App(Service(client, tokenizer, chat_template, settings, origins))


class App:
    """An ASGI app. `service.duty` says whether it takes requests; `server.lifecycle` moves that."""

    def __init__(self, service: Service, routes: tuple[Route, ...] = ROUTES) -> None:
        self.service = service
        self._root_path = service.config.server.root_path
        self._routes: dict[str, dict[str, Handler]] = {}
        self._labels = {route.path: route.label for route in routes}
        for route in routes:
            self._routes.setdefault(route.path, {})[route.method] = _through_door(route)
        service.openapi = openapi.describe(routes)
        origins = service.config.server.allowed_origins
        self._outer = _with_cors(self._answer, origins) if origins else self._answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._outer(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, self._root_path)
        caller = working_for(exchange.id)
        if self.service.duty.leaving:
            exchange.replied.append((b"connection", b"close"))  # the client's next request should go elsewhere
        try:
            await self._dispatch(exchange, caller)
        except ClientGone:
            log.debug("%s: the client went away", exchange.id)
        except ApiError as error:
            await exchange.refuse(error)
        except EngineDead as error:
            await exchange.refuse(engine_dead(error))
        except Exception:
            log.exception("%s %s failed in the server (request %s)", exchange.method, shown(exchange), exchange.id)
            if not exchange.status:
                await exchange.refuse(internal_error())
        finally:
            self._note(exchange)

    def _note(self, exchange: Exchange) -> None:
        seconds = time.perf_counter() - exchange.began
        self.service.visits.ended(exchange.route, _method(exchange), exchange.status, seconds)
        if exchange.error is not None:
            self.service.visits.failed(exchange.error)
        self.service.journal.ended(exchange, seconds)

    async def _dispatch(self, exchange: Exchange, caller: Caller) -> None:
        place = exchange.path if exchange.path in self._routes else self._above(exchange.path)
        exchange.route = self._labels.get(place, NO_ROUTE)
        self.service.tenancy.admit(exchange)
        caller.tenant = exchange.tenant.name
        handler = self._find(exchange, place)
        check_operator(exchange.tenant, exchange.path)
        await handler(self.service, exchange)

    def _find(self, exchange: Exchange, place: str) -> Handler:
        """What answers at this path of the table. Raises ApiError 404 or 405."""
        methods = self._routes.get(place)
        if not methods:
            path = meant(exchange.path, self._routes)
            hint = f", but {path}" if path else "; /docs lists what is"
            raise ApiError(404, f"there is no {exchange.path} here{hint}", code="unknown_url")
        handler = methods.get("GET" if exchange.method == "HEAD" else exchange.method)
        if handler is None:
            allowed = ", ".join([*methods, *(["HEAD"] if "GET" in methods else [])])
            message = f"{exchange.path} takes {allowed}, not {exchange.method}"
            raise ApiError(405, message, code="method_not_allowed", headers=((b"allow", allowed.encode()),))
        return handler

    def _above(self, path: str) -> str:
        """The path of the table that takes this one with it; empty: there is none."""
        parents = (parent for parent in self._routes if parent.endswith("/"))
        return next((parent for parent in parents if path.startswith(parent) and parent != path), "")


def _through_door(route: Route) -> Handler:
    """The route's handler; one that generates is entered through the service's doorway."""
    if not route.generates:
        return route.handler

    async def handler(service: Service, exchange: Exchange) -> None:
        with service.doorway.entered(exchange.tenant.name), service.tenancy.entered(exchange):
            await route.handler(service, exchange)

    return handler


def _with_cors(app: Any, origins: tuple[str, ...]) -> Any:
    exposed = ["retry-after", *HEADERS]
    return CORSMiddleware(app, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=exposed)


def _method(exchange: Exchange) -> str:
    """Of what a client sends, only what there is becomes a label."""
    return exchange.method if exchange.method in _METHODS else "other"
