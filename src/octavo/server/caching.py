"""What operators and clients may do with the prefix cache, beside using it: empty it, and ask it why."""

from typing import Any

import msgspec

from octavo.core.misses import SHOWN, Miss, MissReason
from octavo.engine.asks import CacheReset, ExplainPrefix, ResetPrefixCache
from octavo.server.exchange import Exchange
from octavo.server.openai.errors import ApiError, invalid, unsupported
from octavo.server.openai.intake import read
from octavo.server.openai.params import namespace
from octavo.server.openai.schema import PrefixRequest
from octavo.server.openai.tokenize import ids_of
from octavo.server.service import Service

BEFORE = 16
"""Tokens before the place of a miss that are shown, so that one finds it."""

WHY = {
    MissReason.NEVER_SEEN: "nothing that begins like this is cached, or was of late",
    MissReason.TOKENS_DIFFER: "what is cached goes on with other tokens from here",
    MissReason.SHORTER_THAN_BLOCK: "what is left of the prompt, or what it shares with another, is less than a block",
    MissReason.EVICTED: "it was cached, until another block took its place or the cache was emptied",
    MissReason.STILL_COMPUTING: "another request is computing it",
    MissReason.DIFFERENT_NAMESPACE: "it is cached under another cache_salt",
    MissReason.NO_ROOM_TO_COPY: "the last block would have to be copied, and no block is free for the copy",
    MissReason.PROMPT_LOGPROBS: "logprobs of the prompt are not cached, so it is computed",
    MissReason.MEAN_POOLING: "hidden states are not cached, and the embedding is the mean of all, so it is computed",
    MissReason.DISABLED: "the prefix cache is off (--no-enable-prefix-caching)",
}


async def explain(service: Service, exchange: Exchange) -> None:
    """What a prompt would find in the prefix cache if it came now, and why no more. Nothing is computed or changed."""
    body = await read(service, exchange, PrefixRequest)
    ids = tuple(await ids_of(service, exchange, body))
    if not ids:
        raise invalid("there is nothing to explain: the prompt has no tokens", "prompt")
    tenant = exchange.tenant
    found = await service.ask(ExplainPrefix(ids, namespace(tenant, body.cache_salt), tenant.name))
    answer = {
        "object": "cache_explanation",
        "prompt_tokens": len(ids),
        "cached_tokens": found.num_cached,
        "computed_tokens": len(ids) - found.num_cached,
        "block_size": service.facts.capacity.block_size,
        "cached_text": _text(service, ids[: found.num_cached]),
        "miss": None if found.miss is None else _shown(service, ids, found.miss),
    }
    await exchange.reply(200, msgspec.json.encode(answer))


def _shown(service: Service, ids: tuple[int, ...], miss: Miss) -> dict[str, Any]:
    """Both sides as ids and as text: ours always, theirs where the tokens differ."""
    return {
        "reason": miss.reason,
        "message": WHY[miss.reason],
        "at": miss.at,
        "evicted_s": miss.evicted_s,
        "before": _text(service, ids[max(0, miss.at - BEFORE) : miss.at]),
        "prompt": _side(service, ids[miss.at : miss.at + SHOWN]),
        "cached": _side(service, miss.theirs) if miss.theirs else None,
    }


def _side(service: Service, ids: tuple[int, ...]) -> dict[str, Any]:
    return {"token_ids": ids, "tokens": [_text(service, (token,)) for token in ids], "text": _text(service, ids)}


def _text(service: Service, ids: tuple[int, ...]) -> str:
    return service.tokenizer.decode(ids, skip_special_tokens=False)


async def reset(service: Service, exchange: Exchange) -> None:
    """Forgets every cached block but pinned ones. 409 while running requests hold blocks; then nothing has changed."""
    done = await _reset(service)
    await exchange.reply(200, msgspec.json.encode({"blocks_dropped": done.num_dropped}))


async def reset_as_vllm(service: Service, exchange: Exchange) -> None:
    """The same, as vLLM is asked for it."""
    if exchange.query:
        name = exchange.query.partition(b"=")[0].decode("ascii", "replace")
        raise unsupported(name, "the prefix cache is reset as a whole, when no request runs: there are no options")
    await _reset(service)
    await exchange.reply(200, b'{"success":true}')


async def _reset(service: Service) -> CacheReset:
    done = await service.ask(ResetPrefixCache())
    if done.num_held:
        message = f"the prefix cache is in use: running requests hold {done.num_held} blocks. Try again when they end"
        raise ApiError(409, message, code="cache_in_use", headers=((b"retry-after", b"1"),))
    return done
