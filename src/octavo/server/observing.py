"""What a server shows of itself under /octavo/v1: its state, its events as they happen, one request, its settings."""

import asyncio
import time
from collections.abc import Collection, Mapping
from typing import cast
from urllib.parse import parse_qsl

import msgspec

from octavo import __version__
from octavo.config.rows import rows
from octavo.core.snapshot import LEGEND, LiveRequest, Snapshot
from octavo.engine.asks import WriteDump
from octavo.engine.client import AskFailed, EngineState
from octavo.engine.clock import now
from octavo.server.exchange import EventStream, Exchange
from octavo.server.feed import Reader
from octavo.server.openai.errors import ApiError, failed, invalid
from octavo.server.openai.sse import KEEP_ALIVE
from octavo.server.service import Service
from octavo.server.state_shapes import (
    EngineShown,
    LimitsShown,
    LiveShown,
    LoadShown,
    MapShown,
    RequestShown,
    ServerShown,
    Settings,
    SettingShown,
    Spread,
    State,
    TotalsShown,
    WindowShown,
)
from octavo.server.telling import KINDS, Dropped, Hello, Told, blocks_told, tell, waits_told
from octavo.server.timeline import story_shown

REQUESTS = "/octavo/v1/requests/"
_SHARES = (0.5, 0.9, 0.99)


async def state(service: Service, exchange: Exchange) -> None:
    """The server at a glance: engine, load, KV cache, live requests, and rates and latencies of the last seconds."""
    _queries(exchange, ())
    look = await service.glance.look()
    time_s = now()
    shown: State = {
        "object": "state",
        "time": time_s + service.epoch_s,
        "seq": service.feed.seq,
        "server": _server(service),
        "engine": _engine(service),
        "limits": _limits(service),
        "age_s": None if look is None else round(time_s - look.time_s, 6),
        "load": None if look is None else _load(look),
        "map": None if look is None else _map(look),
        "requests": [] if look is None else [_live(service, one, time_s) for one in look.requests],
        "num_requests": 0 if look is None else look.num_requests,
        "window": _window(service, time_s),
        "totals": _totals(service),
    }
    await exchange.reply(200, msgspec.json.encode(shown))


async def events(service: Service, exchange: Exchange) -> None:
    """Events of the engine as they happen, as server-sent events; all kinds, or those that are asked for."""
    asked = _queries(exchange, EVENT_QUERIES)
    kinds = _kinds(asked.get("kinds", ""))
    with service.feed.reader([KINDS[kind] for kind in kinds], asked.get("request_id")) as reader:
        hello = Hello(time=time.time(), seq=service.feed.seq, version=__version__, kinds=kinds)
        await exchange.while_connected(
            _follow(service, exchange, reader, hello), asyncio.get_running_loop().create_future()
        )


async def request(service: Service, exchange: Exchange) -> None:
    """What became of a request: when it waited for what, what was cached, its chunks, preemptions, first token and end.

    By the id of its answer, by its `x-request-id`, or as the engine calls it. A tenant sees its own.
    """
    name = exchange.path.removeprefix(REQUESTS)
    operator = exchange.tenant.rules.operator
    origin, stories = service.recent.find(name, None if operator else exchange.tenant.name)
    tenant = origin.tenant if origin is not None else next((c.queued.tenant for c in stories if c.queued), "")
    if (not stories and origin is None) or not (operator or tenant == exchange.tenant.name):
        raise ApiError(404, f"no request is remembered as {name!r}: {_FORGOTTEN}", code="request_not_found")
    look = await service.glance.look() if any(map(service.recent.is_live, stories)) else None
    live = {} if look is None else {one.request_id: one for one in look.requests}
    shown: RequestShown = {
        "object": "request",
        "id": name,
        "path": None if origin is None else origin.path,
        "tenant": tenant,
        "x_request_id": None if origin is None else origin.x_request_id,
        "requests": [story_shown(story, live.get(story.request_id)) for story in stories],
    }
    await exchange.reply(200, msgspec.json.encode(shown))


async def config(service: Service, exchange: Exchange) -> None:
    """Each setting, its value, where that came from, and what the engine made of them at its start."""
    _queries(exchange, ())
    settings = [
        {"setting": row.setting.path, "value": row.value, "origin": row.origin, "help": row.setting.option.help}
        for row in rows(service.config, service.origins)
    ]
    ready = service.client.state is EngineState.READY
    shown: Settings = {
        "object": "config",
        "settings": cast(list[SettingShown], settings),
        "report": list(service.client.facts.report) if ready else [],
    }
    await exchange.reply(200, msgspec.json.encode(shown))


async def write_dump(service: Service, exchange: Exchange) -> None:
    """Writes the record of the scheduler into a file of --crash-dump-dir, for `octavo replay`. It has no text in it."""
    if service.config.engine.crash_dump_dir == "off":
        raise ApiError(409, "this server writes no dumps: --crash-dump-dir is off", code="dumps_off")
    try:
        written = await service.ask(WriteDump())
    except AskFailed as error:
        raise failed(f"the dump cannot be written: {error}", "internal_error") from None
    await exchange.reply(201, msgspec.json.encode({"path": written.path}))


_FORGOTTEN = "it was refused before the engine saw it, is longer ago than the last 1000, or somebody else's"

# -- state -----------------------------------------------------------------------------------------------------------


def _server(service: Service) -> ServerShown:
    return {
        "version": __version__,
        "uptime_s": round(now() - service.began_s, 3),
        "models": list(service.names),
        "draining": service.duty.draining,
        "in_flight": service.duty.in_flight,
    }


def _engine(service: Service) -> EngineShown:
    client = service.client
    facts = client.facts if client.state is EngineState.READY else None
    return cast(
        EngineShown,
        {
            "state": client.state.value,
            "progress": client.progress,
            "heartbeat_age_s": round(client.heartbeat_age_s, 3),
            "ready_after_s": _ready_after(service),
            "lost": service.meters.num_lost,
            **{name: getattr(facts, name, None) for name in _FACTS},
            **{name: getattr(facts and facts.capacity, name, None) for name in _CAPACITY},
            "report": list(facts.report) if facts else [],
            "warnings": list(facts.warnings) if facts else [],
        },
    )


def _ready_after(service: Service) -> float | None:
    ready_s = service.recent.ready_s
    return None if ready_s is None else round(ready_s - service.began_s, 3)


_FACTS = ("fingerprint", "isa", "num_threads", "weight_format", "kv_cache_dtype")
_CAPACITY = ("block_size", "num_blocks", "max_model_len")


def _limits(service: Service) -> LimitsShown:
    """Each is a setting of this name, in one of these parts of the configuration."""
    config = service.config
    parts = (config.scheduler, config.cache, config.queue)
    own = {name: next(part for part in parts if hasattr(part, name)) for name in LimitsShown.__annotations__}
    return cast(LimitsShown, {name: getattr(part, name) for name, part in own.items()})


def _load(look: Snapshot) -> LoadShown:
    load, blocks = look.load, blocks_told(look.load)
    held = blocks.leased + blocks.pinned
    return {
        "step": look.step,
        "running": load.num_running,
        "waiting": load.num_waiting,
        "held": load.num_held,
        "waiting_tokens": load.num_waiting_tokens,
        "lacks": look.waiting,
        "blocks": blocks,
        "kv_usage": held / (held + blocks.blank + blocks.cached),
    }


def _map(look: Snapshot) -> MapShown:
    return {"cells": look.cells, "blocks_per_cell": look.blocks_per_cell, "legend": LEGEND}


def _live(service: Service, one: LiveRequest, time_s: float) -> LiveShown:
    return {
        "id": one.request_id,
        "tenant": one.tenant,
        "state": one.state,
        "priority": one.priority,
        "age_s": round(max(0.0, time_s - one.arrival_s), 6),
        "choices": one.num_choices,
        "prompt_tokens": one.prompt_len,
        "cached_tokens": service.recent.cached_tokens(one.request_id),
        "computed_tokens": one.num_computed,
        "generated_tokens": one.num_generated,
        "blocks": one.num_blocks,
        "preemptions": one.num_preempted,
        "lacks": one.lacks,
        "waited": waits_told(one.waited),
    }


def _window(service: Service, time_s: float) -> WindowShown:
    window = service.window
    steps, prompts = window.total("steps", time_s), window.total("prompt_tokens", time_s)
    return {
        "seconds": round(window.length_s(time_s), 3),
        "requests_per_s": window.rate("finished", time_s),
        "refused_per_s": window.rate("refused", time_s),
        "prompt_tokens_per_s": window.rate("prompt_tokens", time_s),
        "generated_tokens_per_s": window.rate("generated_tokens", time_s),
        "steps_per_s": window.rate("steps", time_s),
        "tokens_per_step": window.total("step_tokens", time_s) / steps if steps else None,
        "hit_rate": window.total("cached_tokens", time_s) / prompts if prompts else None,
        "preemptions": window.total("preemptions", time_s),
        "queue": _spread(service, "queue", time_s),
        "first_token": _spread(service, "first_token", time_s),
        "inter_token": _spread(service, "inter_token", time_s),
        "whole": _spread(service, "whole", time_s),
    }


def _spread(service: Service, name: str, time_s: float) -> Spread:
    count, (p50, p90, p99) = service.window.percentiles(name, time_s, _SHARES)
    return {"count": count, "p50": p50, "p90": p90, "p99": p99}


def _totals(service: Service) -> TotalsShown:
    meters = service.meters
    return {
        "finished": {str(reason): count for reason, count in meters.finished.items() if count},
        "refused": dict(meters.refused),
        "prompt_tokens": meters.prompt_tokens,
        "generated_tokens": meters.generation_tokens,
        "cache_queries": meters.cache_queries,
        "cache_hits": meters.cache_hits,
        "missed_tokens": {str(reason): count for reason, count in meters.missed_tokens.items() if count},
        "preemptions": dict(meters.preemptions),
        "tokens_lost": sum(meters.tokens_lost.values()),
        "stalls": sum(meters.stalls.values()),
        "violations": meters.num_violations,
    }


# -- events ----------------------------------------------------------------------------------------------------------

EVENT_QUERIES: Mapping[str, str] = {
    "kinds": f"Kinds of events, separated by commas; default: all. {', '.join(KINDS)}.",
    "request_id": "Only events of this request, as the engine calls it.",
}


async def _follow(service: Service, exchange: Exchange, reader: Reader, hello: Hello) -> None:
    stream = EventStream(exchange)
    async with stream.kept_alive(service.keep_alive_s, KEEP_ALIVE):
        await stream.write(_event(hello))
        while (taken := await reader.take()) is not None:
            num_dropped, numbered = taken
            told = [tell(event, seq, service.epoch_s) for seq, event in numbered]
            lost = [Dropped(time=told[0].time, seq=told[0].seq, count=num_dropped)] if num_dropped else []
            await stream.write(b"".join(map(_event, [*lost, *told])))
        await stream.write(b"", more=False)


def _event(told: Told) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (str(told.__struct_config__.tag).encode(), msgspec.json.encode(told))


def _kinds(text: str) -> list[str]:
    """Raises ApiError 400 for a kind that there is not."""
    asked = [word.strip() for word in text.split(",") if word.strip()]
    for kind in asked:
        if kind not in KINDS:
            raise invalid(f"there are no events of the kind {kind!r}; there are {', '.join(KINDS)}", "kinds")
    return asked or list(KINDS)


def _queries(exchange: Exchange, known: Collection[str]) -> dict[str, str]:
    """What the URL asks for. Raises ApiError 400 for what nobody knows."""
    asked = dict(parse_qsl(exchange.query.decode("latin-1"), keep_blank_values=True))
    for name in asked:
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "it takes none"
            raise ApiError(400, f"{exchange.path} knows no {name!r}; {there}", param=name, code="unknown_parameter")
    return asked
