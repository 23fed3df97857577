"""Journal: what is worth a line of the log: events of the engine, requests as they come, and answers as they end."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any
from urllib.parse import quote

from octavo.config.logs import about, with_fields
from octavo.config.schema import ObservabilityConfig
from octavo.core.events import Preempted, Stalled, Steered
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.server.exchange import Exchange
from octavo.server.listeners import one_by_one
from octavo.server.recent import Recent

log = logging.getLogger(__name__)
access = logging.getLogger("octavo.server.access")
_DEFAULTS = SamplingParams()


class Journal:
    """Knows from `recent` whose request an event is about."""

    def __init__(self, recent: Recent, settings: ObservabilityConfig) -> None:
        self._recent = recent
        self._settings = settings
        self._quiet = frozenset(f"/{path.strip('/')}" for path in settings.disable_access_log_for_endpoints)
        self.handlers = one_by_one({Preempted: self._preempted, Stalled: self._stalled, Steered: self._steered})

    def ended(self, exchange: Exchange, seconds: float) -> None:
        """A request over HTTP is over: one line, which has no word of what was asked or answered."""
        level = logging.DEBUG if exchange.path in self._quiet else logging.INFO
        if not access.isEnabledFor(level):
            return
        status = exchange.status or "client gone"
        tokens = f", {exchange.tokens}" if exchange.tokens else ""
        tenant = f", tenant {exchange.tenant.name}" if exchange.tenant.name else ""
        told = {"method": exchange.method, "path": shown(exchange), "status": exchange.status, "seconds": seconds}
        code = {} if exchange.error is None else {"error": exchange.error.code}
        text = "%s %s %s in %.3f s%s%s (%s)"
        words = (exchange.method, shown(exchange), status, seconds, tokens, tenant, exchange.id)
        access.log(level, text, *words, extra=with_fields(**told, **code))

    def came(self, requests: Sequence[Request], decode: Callable[[Sequence[int]], str]) -> None:
        """A request is on its way to the engine: a line for each prompt, where that was asked for."""
        most = self._settings.max_log_len
        for request in requests if self._settings.enable_log_requests else ():
            told = {"prompt_tokens": len(request.prompt), **self._wanted(request)}
            if most:
                told["prompt"] = decode(request.prompt[: 4 * most])[:most]  # a character takes up to four tokens
            words = ", ".join(f"{name}: {value!r}" for name, value in told.items())
            log.info("request %s: %s", request.request_id, words, extra=with_fields(**told))

    def _wanted(self, request: Request) -> dict[str, Any]:
        """An embedding is drawn from nothing: it has no seed."""
        if request.pooling is not None:
            return {"pooling": request.pooling.value}
        return {"seed": request.seed, "params": self._params(request.params)}

    def _params(self, params: SamplingParams) -> dict[str, Any]:
        """What is not as by default. Texts that a client wrote are told by their length, unless prompts are, too."""
        given = {item.name: getattr(params, item.name) for item in fields(params)}
        changed = {name: value for name, value in given.items() if value != getattr(_DEFAULTS, name)}
        most = self._settings.max_log_len
        return {name: value if _is_number(value) else _cut(str(value), most) for name, value in changed.items()}

    def _preempted(self, event: Preempted) -> None:
        origin, _ = self._recent.find(event.request_id)
        extra = None if origin is None else about(origin.x_request_id, origin.tenant)
        lost = f"{event.tokens_lost} tokens lost, {event.tokens_swapped} kept"
        who = (event.request_id, event.choice, event.times)
        log.info("preempted %s/%d (time %d): %s; %s", *who, lost, event.reason, extra=extra)

    def _stalled(self, event: Stalled) -> None:
        log.warning("nothing advances: %s", event.message)

    def _steered(self, event: Steered) -> None:
        if event.reason != "hold":
            log.info("latency objectives: %s: %s", event.reason, event.message)


def shown(exchange: Exchange) -> str:
    """The path as URLs are written: no line, field or colour of the log can begin within it."""
    return quote(exchange.path, safe="/:@!$&'()*+,;=", errors="replace")


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float)


def _cut(text: str, most: int) -> str:
    return text[:most] if most else f"<{len(text)} characters>"
