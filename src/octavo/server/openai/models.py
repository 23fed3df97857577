"""GET /v1/models and /v1/models/NAME"""

from typing import Any

import msgspec

from octavo.server.exchange import Exchange
from octavo.server.openai.errors import unknown_model
from octavo.server.service import Service


async def list_models(service: Service, exchange: Exchange) -> None:
    """The model that is served, once under each of its names."""
    cards = [_card(service, exchange, name) for name in service.names]
    await exchange.reply(200, msgspec.json.encode({"object": "list", "data": cards}))


async def show_model(service: Service, exchange: Exchange) -> None:
    """One of them. Names may have slashes in them."""
    name = exchange.path.removeprefix("/v1/models/")
    if name not in service.names:
        raise unknown_model(name, service.names)
    await exchange.reply(200, msgspec.json.encode(_card(service, exchange, name)))


def _card(service: Service, exchange: Exchange, name: str) -> dict[str, Any]:
    facts = service.facts
    return {
        "id": name,
        "object": "model",
        "created": service.began,
        "owned_by": "octavo",
        "root": facts.model,
        "parent": None,
        "max_model_len": service.context(exchange.tenant),
    }
