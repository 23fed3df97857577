"""Health over gRPC: the standard Health Checking Protocol, with reflection; it says what /health and /health/ready say.

Needs the extra `grpc`. Plaintext and without a key, as the probes over HTTP are: it tells nothing but up or down.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from octavo.server.lifecycle import LAST_WORDS_S, CannotListen, bound
from octavo.server.openai.errors import ApiError
from octavo.server.service import Service

log = logging.getLogger(__name__)

SERVICES: Mapping[str, Callable[[Service], ApiError | None]] = {
    "": Service.readiness,
    "octavo.readiness": Service.readiness,
    "octavo.liveness": Service.health,
}
"""What may be asked for, and who knows what is wrong with it. The empty name is what balancers of clients ask for."""
LOOK_S = 0.5
"""How often a watched service is looked at: a stuck engine is no event, it is the lack of any."""
MAX_WATCHERS = 64

_Status = health_pb2.HealthCheckResponse.ServingStatus
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@asynccontextmanager
async def answering(service: Service) -> AsyncIterator[int]:
    """The gRPC server, from now until the end of the block, on this event loop; its port. Raises CannotListen."""
    config = service.config.server
    bound(config.host, config.grpc_port, "--grpc-port").close()  # gRPC's own words for a port in use are many
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    host = f"[{config.host}]" if ":" in config.host else config.host
    try:
        port = server.add_insecure_port(f"{host}:{config.grpc_port}")
    except RuntimeError as error:
        raise CannotListen(f"cannot listen on {host} port {config.grpc_port}: {error}") from error
    answers = Health(service)
    health_pb2_grpc.add_HealthServicer_to_server(answers, server)
    reflection.enable_server_reflection((health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    await server.start()
    log.info("health checks over gRPC: %s:%d, services %s", host, port, ", ".join(filter(None, SERVICES)))
    try:
        yield port
    finally:
        answers.end()
        await server.stop(LAST_WORDS_S)


class Health(health_pb2_grpc.HealthServicer):
    """Answers from the service's own state at the moment of the question: there is no second one to be kept in step."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._ending = asyncio.Event()
        self._num_watchers = 0

    def end(self) -> None:
        """Nothing is served from now on; those who watch are told so, and their streams end."""
        self._ending.set()

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        status = self._status(request.service)
        if status == UNKNOWN:
            names = ", ".join(repr(name) for name in SERVICES)
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r}; there are {names}")
        return _answer(status)

    async def List(self, request: object, context: grpc.aio.ServicerContext) -> object:
        statuses = {name: _answer(self._status(name)) for name in SERVICES}
        return health_pb2.HealthListResponse(statuses=statuses)  # pyright: ignore[reportAttributeAccessIssue]

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """The status now, and then each change of it. What is asked for by Check is answered whatever is watched."""
        if self._num_watchers >= MAX_WATCHERS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_WATCHERS} watch already; use Check")
        self._num_watchers += 1
        try:
            async for status in self._changes(request.service):
                yield _answer(status)
        finally:
            self._num_watchers -= 1

    async def _changes(self, name: str) -> AsyncIterator[_Status]:
        told = None
        while True:
            ends = self._ending.is_set()
            status = self._status(name)
            if status != told:
                yield status
            if ends:
                return
            told = status
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), LOOK_S)

    def _status(self, name: str) -> _Status:
        if name not in SERVICES:
            return UNKNOWN
        problem = SERVICES[name](self._service)
        return SERVING if problem is None and not self._ending.is_set() else NOT_SERVING


def _answer(status: _Status) -> health_pb2.HealthCheckResponse:
    return health_pb2.HealthCheckResponse(status=status)
