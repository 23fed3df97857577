"""`octavo serve --grpc` as a process, watched by a client of the standard protocol: it leaves; its engine freezes."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from octavo.tools.cold_start import free_port
from tests.system.serving import EXIT_S, Served, serving

SMALL = ("--max-model-len", "512", "--max-num-seqs", "4", "--kv-cache-memory-bytes", "64MiB")
SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING


@contextmanager
def watched(model: Path, *arguments: str) -> Iterator[tuple[Served, HealthStub]]:
    port = free_port()
    with (
        serving(str(model), *SMALL, "--grpc", "--grpc-port", str(port), *arguments) as server,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield server, HealthStub(channel)


def watch(health: HealthStub, service: str) -> Iterator[int]:
    request = HealthCheckRequest(service=f"octavo.{service}")
    return (answer.status for answer in health.Watch(request, timeout=EXIT_S))


def test_who_watches_is_told_that_a_server_leaves(default_model: Path) -> None:
    with watched(default_model, "--shutdown-delay", "1") as (server, health):
        readiness = watch(health, "readiness")
        assert next(readiness) == SERVING
        server.process.terminate()
        assert next(readiness) == NOT_SERVING
        assert health.Check(HealthCheckRequest(service="octavo.liveness"), timeout=EXIT_S).status == SERVING
        assert list(readiness) == []
        assert server.process.wait(EXIT_S) == 0


@pytest.mark.slow
def test_a_frozen_engine_is_not_alive_until_it_goes_on(default_model: Path) -> None:
    with watched(default_model) as (server, health):
        (engine,) = server.children(b"engine")
        liveness = watch(health, "liveness")
        assert next(liveness) == SERVING
        os.kill(engine, signal.SIGSTOP)
        assert next(liveness) == NOT_SERVING
        os.kill(engine, signal.SIGCONT)
        assert next(liveness) == SERVING
