"""Pins over HTTP: POST, GET and DELETE /octavo/v1/pins. A tenant sees and removes its own; an operator, everybody's."""

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.config.tenants import LOWEST_PRIORITY, Tenant
from octavo.core.pins import Pin, PinOutcome, PinWish
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.engine.asks import AddPin, ListPins, RemovePin
from octavo.engine.clock import now
from octavo.server.exchange import Exchange
from octavo.server.openai.answer import Answer, Delta
from octavo.server.openai.errors import ApiError, invalid, unavailable
from octavo.server.openai.intake import read
from octavo.server.openai.job import Job, announce
from octavo.server.openai.params import namespace
from octavo.server.openai.schema import DEFAULT_TTL_S, MAX_TTL_S, PinRequest
from octavo.server.openai.tokenize import ids_of
from octavo.server.service import Service

PATH = "/octavo/v1/pins"
MOST_TRIES = 3
"""What was computed for a pin may be evicted before it is pinned, where the pool is very short: then once more."""


async def add(service: Service, exchange: Exchange) -> None:
    """Keeps the beginning of a prompt in the cache for a time, computing it where it is not there. 201 with the pin."""
    body = await read(service, exchange, PinRequest)
    wish = await _wish(service, exchange, body)
    with service.duty.flight(exchange.began, service.config.server.request_timeout) as stopped:
        await exchange.while_connected(_pin(service, exchange, wish), stopped)


async def list_pins(service: Service, exchange: Exchange) -> None:
    """The pins, the oldest first, and how many blocks they hold together."""
    found = await service.ask(ListPins(_whose(exchange.tenant)))
    answer = {
        "object": "list",
        "data": [_shown(pin) for pin in found.pins],
        "blocks": found.num_blocks,
        "quota_blocks": _quota(service, exchange.tenant),
    }
    await exchange.reply(200, msgspec.json.encode(answer))


async def remove(service: Service, exchange: Exchange) -> None:
    """Lets go of a pin: what it held stays cached, and may be evicted again."""
    pin_id = exchange.path.removeprefix(f"{PATH}/")
    removed = await service.ask(RemovePin(pin_id, _whose(exchange.tenant)))
    if not removed.found:
        raise ApiError(404, f"there is no pin {pin_id!r} here", code="pin_not_found")
    await exchange.reply(200, msgspec.json.encode({"id": pin_id, "object": "pin", "deleted": True}))


async def _wish(service: Service, exchange: Exchange, body: PinRequest) -> PinWish:
    """Raises ApiError 400."""
    ttl_s = DEFAULT_TTL_S if body.ttl is None else body.ttl
    if not 1 <= ttl_s <= MAX_TTL_S:
        raise invalid(f"ttl must be a number of seconds from 1 to {MAX_TTL_S:.0f}, got {ttl_s:g}", "ttl")
    opens = bool(body.add_generation_prompt)
    ids = tuple(await ids_of(service, exchange, body.model_copy(update={"add_generation_prompt": opens})))
    tenant = exchange.tenant
    context = service.context(tenant)
    if len(ids) >= context:
        message = f"the prefix has {len(ids)} tokens; with 1 more it must fit the context of {context}"
        raise invalid(message, None, "context_length_exceeded")
    space = namespace(tenant, body.cache_salt)
    return PinWish(f"pin-{secrets.token_hex(8)}", tenant.name, space, ids, ttl_s, _quota(service, tenant))


def _quota(service: Service, tenant: Tenant) -> int:
    """Blocks that it may pin."""
    share = service.config.cache.pin_quota if tenant.rules.pin_quota is None else tenant.rules.pin_quota
    return int(share * service.facts.capacity.num_blocks)


def _whose(tenant: Tenant) -> str | None:
    return None if tenant.rules.operator else tenant.name


async def _pin(service: Service, exchange: Exchange, wish: PinWish) -> None:
    outcome, num_computed = await service.ask(AddPin(wish)), 0
    for attempt in range(MOST_TRIES):
        if not outcome.num_missing:
            break
        num_computed = num_computed or _charged(exchange, outcome.num_missing)
        await _compute(service, exchange, wish, attempt)
        outcome = await service.ask(AddPin(wish))
    if exchange.spending is not None:
        exchange.spending.end(num_computed)
    if outcome.pin is None:
        raise _refusal(outcome)
    answer = {**_shown(outcome.pin), "computed_tokens": num_computed}
    await exchange.reply(201, msgspec.json.encode(answer))


def _charged(exchange: Exchange, num_tokens: int) -> int:
    """Takes what is to be computed from the tenant's quota of tokens. Raises ApiError 429."""
    if exchange.spending is not None:
        exchange.spending.charge(num_tokens, "prompt")
    return num_tokens


async def _compute(service: Service, exchange: Exchange, wish: PinWish, attempt: int) -> None:
    """Puts the prefix into the cache, as a request that comes after all others. Raises ApiError where that fails."""
    size = service.facts.capacity.block_size
    params = SamplingParams(temperature=0, max_tokens=1)
    request = Request(
        request_id=f"{wish.pin_id}-{attempt}",
        prompt=wish.tokens[: len(wish.tokens) // size * size],
        params=params,
        arrival_s=now(),
        priority=LOWEST_PRIORITY if service.config.scheduler.scheduling_policy == "priority" else 0,
        namespace=wish.namespace,
        tenant=wish.tenant,
        weight=exchange.tenant.rules.weight,
    )
    announce(service, exchange, [request])
    await Job(service, [request], [Answer(service.tokenizer, params)], prompt_only=True).run(_Nobody())


class _Nobody:
    """The engine must generate a token, and nobody sees it."""

    free = True

    def put(self, deltas: Sequence[Delta]) -> None:
        pass

    async def take(self, deltas: Sequence[Delta]) -> None:
        pass


_STATUS = {"pin_quota_exceeded": 409, "no_room_to_pin": 409}


def _refusal(outcome: PinOutcome) -> ApiError:
    if outcome.num_missing:
        message = "what was computed for the pin was evicted before it was pinned: the KV cache is very short of blocks"
        return unavailable(message, "no_room_to_pin", 5)
    return ApiError(_STATUS.get(outcome.code, 400), outcome.message, code=outcome.code)


def _shown(pin: Pin) -> dict[str, Any]:
    return {
        "id": pin.pin_id,
        "object": "pin",
        "tenant": pin.tenant or None,
        "tokens": pin.num_tokens,
        "blocks": pin.num_blocks,
        "expires_in": round(max(0.0, pin.expires_s - now()), 3),
    }
