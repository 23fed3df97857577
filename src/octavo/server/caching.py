"""What operators and clients may do with the prefix cache, beside using it: empty it."""

import msgspec

from octavo.engine.asks import CacheReset, ResetPrefixCache
from octavo.server.exchange import Exchange
from octavo.server.openai.errors import ApiError, unsupported
from octavo.server.service import Service


async def reset(service: Service, exchange: Exchange) -> None:
    """Forgets every cached block. 409 while running requests hold blocks; then nothing has changed."""
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
