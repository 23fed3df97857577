"""What operators and probes ask: is it alive, is it ready, which version, how busy, and the numbers."""

import msgspec

from octavo import __version__
from octavo.engine.client import EngineState
from octavo.server.exchange import Exchange
from octavo.server.exposition import CONTENT_TYPE, exposed
from octavo.server.service import Service


async def health(service: Service, exchange: Exchange) -> None:
    """Liveness: 503 where only a restart helps. An engine that still loads is alive."""
    problem = service.health()
    if problem is not None:
        raise problem
    await exchange.reply(
        200, msgspec.json.encode({"status": service.client.state.value, "stalled_steps": service.meters.num_stalled})
    )


async def ready(service: Service, exchange: Exchange) -> None:
    """Readiness: 200 only where a request would be served now."""
    problem = service.readiness()
    if problem is not None:
        raise problem
    await exchange.reply(200, b'{"status":"ready"}')


async def version(service: Service, exchange: Exchange) -> None:
    """The version, and once the engine is ready what it computes with."""
    answer = {"version": __version__}
    if service.client.state is EngineState.READY:
        answer["fingerprint"] = service.client.facts.fingerprint
    await exchange.reply(200, msgspec.json.encode(answer))


async def load(service: Service, exchange: Exchange) -> None:
    """How busy the server is: requests that are being answered, and the engine's last gauges."""
    state = service.meters.gauges
    answer = {
        "server_load": service.duty.in_flight,
        "num_requests_running": state.num_running,
        "num_requests_waiting": service.meters.num_waiting,
        "kv_cache_usage_perc": service.meters.kv_usage,
    }
    await exchange.reply(200, msgspec.json.encode(answer))


async def metrics(service: Service, exchange: Exchange) -> None:
    """The numbers, as Prometheus reads them."""
    await exchange.reply(200, exposed(service.registry), media=CONTENT_TYPE)
