"""Health over gRPC, asked by the real client library: what is served, what changes, and when it ends."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from threading import Event

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse, HealthListRequest
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from octavo.config.schema import Config, ConfigError, ModelConfig, ServerConfig
from octavo.models.checkpoint import Checkpoint
from octavo.server import health_grpc
from octavo.server.lifecycle import CannotListen
from tests.server.site import PATIENCE_S, Gate, Site, backend_of, running

CONFIG = Config(model=ModelConfig(model="tiny"), server=ServerConfig(port=0, grpc=True, grpc_port=0))
SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
READINESS, LIVENESS = "octavo.readiness", "octavo.liveness"


def answering(site: Site) -> AbstractContextManager[int]:
    """The port of the site's own gRPC server, which ends with the block."""
    return site.within(health_grpc.answering(site.app.service))


@contextmanager
def channel_to(site: Site) -> Iterator[grpc.Channel]:
    with answering(site) as port, connected(port) as channel:
        yield channel


def connected(port: int) -> grpc.Channel:
    return grpc.insecure_channel(f"127.0.0.1:{port}")


def check(channel: grpc.Channel, service: str) -> int:
    return HealthStub(channel).Check(HealthCheckRequest(service=service), timeout=PATIENCE_S).status


def both(channel: grpc.Channel) -> tuple[int, int]:
    return check(channel, READINESS), check(channel, LIVENESS)


def watch(channel: grpc.Channel, service: str) -> Iterator[int]:
    answers = HealthStub(channel).Watch(HealthCheckRequest(service=service), timeout=PATIENCE_S)
    return (answer.status for answer in answers)


def can_watch(channel: grpc.Channel) -> bool:
    try:
        return next(watch(channel, "")) == SERVING
    except grpc.RpcError:
        return False


def over_http(site: Site) -> tuple[int, int]:
    """The same two questions over HTTP."""
    answers = (site.http.get(path).status_code == 200 for path in ("/health/ready", "/health"))
    ready, alive = (SERVING if answer else NOT_SERVING for answer in answers)
    return ready, alive


def drain(site: Site) -> None:
    async def draining() -> None:
        site.app.service.duty.drain()

    site.run(draining())


def test_while_it_serves_all_services_are_up(checkpoint: Checkpoint) -> None:
    with running(checkpoint, CONFIG) as site, channel_to(site) as channel:
        assert both(channel) == over_http(site) == (SERVING, SERVING)
        assert check(channel, "") == SERVING
        listed = HealthStub(channel).List(HealthListRequest(), timeout=PATIENCE_S).statuses
        assert {name: each.status for name, each in listed.items()} == dict.fromkeys(health_grpc.SERVICES, SERVING)


def test_while_it_loads_it_is_alive_and_not_ready(checkpoint: Checkpoint) -> None:
    loaded = Event()

    def load(report: Callable[[str], None]) -> None:
        assert loaded.wait(PATIENCE_S)

    with running(checkpoint, CONFIG, load=load) as site, channel_to(site) as channel:
        seen = watch(channel, READINESS)
        assert next(seen) == NOT_SERVING
        assert both(channel) == over_http(site) == (NOT_SERVING, SERVING)
        loaded.set()
        assert next(seen) == SERVING
        assert both(channel) == over_http(site) == (SERVING, SERVING)


def test_while_it_drains_it_is_alive_and_not_ready(checkpoint: Checkpoint) -> None:
    with running(checkpoint, CONFIG) as site, channel_to(site) as channel:
        seen = watch(channel, "")
        assert next(seen) == SERVING
        drain(site)
        assert next(seen) == NOT_SERVING
        assert both(channel) == over_http(site) == (NOT_SERVING, SERVING)


def test_a_frozen_engine_is_down_until_it_goes_on(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that does not end and computes nothing gives no signs of life."""
    monkeypatch.setattr("octavo.server.service.PATIENCE_S", 1.5)
    gate = Gate(backend_of(checkpoint))
    with running(checkpoint, CONFIG, backend=gate) as site, channel_to(site) as channel:
        seen = watch(channel, LIVENESS)
        assert next(seen) == SERVING
        with site.opened("/v1/completions", {"prompt": "the", "max_tokens": 2}):
            assert next(seen) == NOT_SERVING
            assert both(channel) == over_http(site) == (NOT_SERVING, NOT_SERVING)
            gate.open()
            assert next(seen) == SERVING


def test_who_watches_when_it_ends_is_told(checkpoint: Checkpoint) -> None:
    with running(checkpoint, CONFIG) as site, ExitStack() as client:
        with answering(site) as port:
            seen = watch(client.enter_context(connected(port)), READINESS)
            assert next(seen) == SERVING
        assert list(seen) == [NOT_SERVING]


def test_an_unknown_service_is_not_found_and_may_be_waited_for(checkpoint: Checkpoint) -> None:
    with running(checkpoint, CONFIG) as site, channel_to(site) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            check(channel, "octavo")
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND and LIVENESS in refused.value.details()
        assert next(watch(channel, "octavo")) == HealthCheckResponse.SERVICE_UNKNOWN


def test_watchers_are_bounded_and_checks_are_not(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that nobody who watches a lot can make a probe fail."""
    monkeypatch.setattr(health_grpc, "MAX_WATCHERS", 2)
    with running(checkpoint, CONFIG) as site, channel_to(site) as channel:
        first, second = (HealthStub(channel).Watch(HealthCheckRequest(), timeout=PATIENCE_S) for _ in range(2))
        assert next(first).status == next(second).status == SERVING
        with pytest.raises(grpc.RpcError) as refused:
            next(watch(channel, ""))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert check(channel, "") == SERVING
        first.cancel()
        site.until(lambda: can_watch(channel))


def test_tools_find_the_service_by_reflection(checkpoint: Checkpoint) -> None:
    with running(checkpoint, CONFIG) as site, channel_to(site) as channel:
        described = ProtoReflectionDescriptorDatabase(channel)
        names = described.get_services()
        assert set(names) == {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
        assert "Check" in str(described.FindFileContainingSymbol("grpc.health.v1.Health"))


def test_a_port_in_use_is_said_with_the_flag_that_chooses_another(checkpoint: Checkpoint) -> None:
    with running(checkpoint, CONFIG) as site, answering(site) as port:
        taken = ServerConfig(port=0, grpc=True, grpc_port=port)
        with (
            running(checkpoint, Config(server=taken)) as other,
            pytest.raises(CannotListen, match=f"{port} is in use.*--grpc-port"),
            answering(other),
        ):
            pass


def test_http_and_grpc_need_a_port_each() -> None:
    with pytest.raises(ConfigError, match="port and grpc_port are both 9000"):
        ServerConfig(port=9000, grpc=True, grpc_port=9000)
    assert ServerConfig(port=9000, grpc_port=9000).port == 9000
