"""Following: requests on their way through the engine, each step by step, several at once. Nothing is left behind."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

from octavo.core.request import Request
from octavo.engine.client import EngineDead, Steps
from octavo.server.doorway import Place
from octavo.server.openai.errors import engine_dead
from octavo.server.service import Service


@asynccontextmanager
async def followed(service: Service, request: Request) -> AsyncIterator[tuple[Steps, Place]]:
    """Submits it; gives its events, those of one step together, and its place in the line before the engine.

    With the block it ends in the engine too, where it has not ended. Raises ApiError 503 where it may not wait, and
    where the engine dies.
    """
    place = service.doorway.queue(request)
    steps = service.client.submit(request)
    try:
        yield steps, place
    except EngineDead as error:
        raise engine_dead(error) from None
    finally:
        place.leave()
        await steps.aclose()


async def together(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Does all of them at once. Where one raises, the others are cancelled, and the first error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as errors:
        raise _first(errors) from None


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
