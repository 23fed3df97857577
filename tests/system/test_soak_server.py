"""A soak over HTTP: a server with all that can be switched on, and visitors of all kinds, for a long time.

Four phases, and a rest after each. At each scrape the laws of the metrics hold; at each rest all blocks are there, all
gauges idle, and the counters are the sums of what clients were told. The first phase is the warm-up: pools of threads
and memories of fixed size fill. Then nothing grows any more.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.server.scrape import IDLE, Scrape
from tests.server.site import as_
from tests.system import visitors
from tests.system.serving import EXIT_S, Served, serving
from tests.system.visitors import FULL, Book, Visit, Visitor
from tests.system.vitals import Sample, growth, typical, vitals_of, write

LONG_S = 20 * 60
SHORT_S = 10
NUM_PHASES = 4
MOST_GROWTH = 0.02
AT_REST = "at rest: "
LOOK_S, SCRAPE_EVERY = 1.0, 3

NUM_BLOCKS = 44
FLAGS = {
    "num-blocks": NUM_BLOCKS,
    "max-model-len": 640,
    "max-num-seqs": 8,
    "max-num-batched-tokens": 256,
    "max-num-queued-reqs": 16,
    "max-num-queued-tokens": 6000,
    "block-manager": "v1",
    "scheduling-policy": "fair",
    "kv-offload-bytes": "8MiB",
    "speculative-config": '{"num_speculative_tokens": 3}',
    "slo-itl-ms": 1000,
    "slo-ttft-ms": 5000,
    "max-body-bytes": visitors.LONGEST_BODY,
    "log-format": "json",
    "on-engine-failure": "exit",
}
ERRORS = "octavo:http_errors_total"
OPERATOR = "operator-key"
TENANTS = """
tenants:
  red: {keys: [red]}
  blue: {keys: [blue], cache: lab}
  wild: {keys: [wild], cache: lab}
  gone: {keys: [gone], cache: lab, weight: 2}
  crowd: {keys: [crowd]}
  few: {keys: [few], requests_per_minute: 120, tokens_per_minute: 4000, concurrent_requests: 2}
"""
EXACT = ("red", "blue")
CAST: list[tuple[Visitor, str, int]] = [
    (visitors.careful, "red", 2),
    (visitors.careful, "blue", 2),
    (visitors.wild, "wild", 2),
    (visitors.limited, "few", 3),
    (visitors.leaving, "gone", 3),
    (visitors.slow, "gone", 1),
    (visitors.muddled, "wild", 1),
    (visitors.bursting, "crowd", 1),
    (visitors.operating, OPERATOR, 1),
    (visitors.following, OPERATOR, 1),
]
"""Who does what, under which key, and how many of them."""


@dataclass
class Watch:
    """Looks at the server from outside: its processes each second, its metrics now and then."""

    server: Served
    book: Book
    http: httpx.AsyncClient
    samples: list[Sample] = field(default_factory=list)
    last: Scrape | None = None
    looks: int = 0
    began_s: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    @property
    def pids(self) -> dict[str, int]:
        (engine,) = self.server.children(b"engine")
        return {"server": self.server.process.pid, "engine": engine}

    def sample(self, moment: str, phase: int) -> None:
        time_s = asyncio.get_running_loop().time() - self.began_s
        self.samples += [Sample(time_s, phase, moment + name, vitals_of(pid)) for name, pid in self.pids.items()]

    async def scrape(self) -> Scrape:
        """The metrics, whose laws hold, and which have gone back nowhere."""
        response = await self.http.get("/metrics", **as_(OPERATOR))
        found = Scrape(response.text)
        self.book.note("/metrics", response)
        found.check(self.last)
        self.last = found
        return found

    async def over(self, phase: int, seconds: float) -> None:
        """For so long."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while loop.time() < began_s + seconds:
            self.sample("", phase)
            if self.looks % SCRAPE_EVERY == 0:
                await self.scrape()
            self.looks += 1
            await asyncio.sleep(LOOK_S)

    async def rest(self) -> Scrape:
        """The metrics once nothing runs and no pin is left, with all that must be so then."""
        await self._unpin()
        async with asyncio.timeout(EXIT_S):
            while not is_at_rest(found := await self.scrape(), self.book):
                await asyncio.sleep(0.05)
        found.check_idle()
        free = sum(found.sum("octavo:blocks", state=state) for state in ("blank", "cached"))
        assert free == found.sum("octavo:num_blocks") == NUM_BLOCKS
        assert found.sum("octavo:audits_total") > 0 == found.sum("octavo:audit_violations_total")
        return found

    async def _unpin(self) -> None:
        listed = await self.http.get("/octavo/v1/pins", **as_(OPERATOR))
        self.book.note("/octavo/v1/pins", listed)
        for pin in listed.json()["data"]:
            response = await self.http.delete(f"/octavo/v1/pins/{pin['id']}", **as_(OPERATOR))
            self.book.note("/octavo/v1/pins/{id}", response)


def is_at_rest(found: Scrape, book: Book) -> bool:
    """Is nothing going on, and has the server taken note of all who left?"""
    return all(found.sum(name) == 0 for name in IDLE) and all(
        answers(found, route) == asked(book, route) for route, _ in book.statuses if route != "/metrics"
    )


def answers(found: Scrape, route: str) -> float:
    return found.sum("octavo:http_answers_total", handler=route)


def asked(book: Book, route: str) -> int:
    return book.left[route] + sum(count for (at, _), count in book.statuses.items() if at == route)


def check_sums(found: Scrape, book: Book) -> None:
    """The counters are what clients were told, in sum. Of those who left, nobody knows what they would have been."""
    for route, status in book.statuses:
        if route != "/metrics":
            least = book.statuses[route, status]
            assert least <= found.sum("octavo:http_answers_total", handler=route, status=str(status))
            assert least >= found.sum("octavo:http_answers_total", handler=route, status=str(status)) - book.left[route]
    for key in EXACT:
        assert found.sum("octavo:tenant_requests_total", tenant=key) == book.requests[key] > 0
        assert found.sum("octavo:tenant_prompt_tokens_total", tenant=key) == book.prompt_tokens[key]
        assert found.sum("octavo:tenant_generation_tokens_total", tenant=key) == book.completion_tokens[key]


def check_errors(found: Scrape, book: Book) -> None:
    """Also at the end of streams, nothing was wrong with the server but that it was full."""
    assert book.unexpected == []
    rows = [(dict(labels), count) for (name, labels), count in found.values.items() if name == ERRORS]
    ours = {row["code"]: count for row, count in rows if count and row["status"] >= "500"}
    assert ours.keys() <= FULL, ours
    assert found.sum("vllm:request_success_total", finished_reason="error") == 0


async def soak(server: Served, book: Book, seconds: float) -> tuple[list[Sample], list[Scrape]]:
    """The series of samples, and the metrics at each rest."""
    rests: list[Scrape] = []
    async with client(server) as http:
        watch = Watch(server, book, http)
        for phase in range(NUM_PHASES):
            await one_phase(watch, phase, seconds / NUM_PHASES)
            rests.append(await watch.rest())
            watch.sample(AT_REST, phase)
            check_sums(rests[-1], book)
            check_errors(rests[-1], book)
    return watch.samples, rests


async def one_phase(watch: Watch, phase: int, seconds: float) -> None:
    """All visitors, for so long; on return they have done what they were doing."""
    stop = asyncio.Event()
    async with client(watch.server) as http, asyncio.TaskGroup() as tasks:
        for number, (visitor, key) in enumerate(cast()):
            visit = Visit(http, watch.server.port, random.Random(f"{phase} {number}"), watch.book, stop, key)
            tasks.create_task(again(visitor, visit))
        await watch.over(phase, seconds)
        stop.set()


def client(server: Served) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=server.url, timeout=3 * EXIT_S, limits=limits, trust_env=False)


def cast() -> Iterator[tuple[Visitor, str]]:
    for visitor, key, count in CAST:
        yield from [(visitor, key)] * count


async def again(visitor: Visitor, visit: Visit) -> None:
    while not visit.stop.is_set():
        await visitor(visit)


@contextmanager
def soaked(model: Path, folder: Path) -> Iterator[Served]:
    """A server with all that can be switched on."""
    tenants = folder / "tenants.yaml"
    tenants.write_text(TENANTS, encoding="utf-8")
    flags = {**FLAGS, "tenants": tenants, "api-key": OPERATOR, "crash-dump-dir": folder / "dumps"}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    with serving(str(model), "--audit", *words) as server:
        yield server


def check_log(server: Served) -> None:
    lines = [json.loads(line) for line in server.words().splitlines()]
    assert [line for line in lines if line["level"] in ("ERROR", "CRITICAL")] == []


def run(model: Path, folder: Path, seconds: float) -> tuple[list[Sample], Scrape]:
    book = Book()
    with soaked(model, folder) as server:
        samples, rests = asyncio.run(soak(server, book, seconds))
        write(samples, folder / "vitals.csv")
        print(report(samples, rests[-1], book, seconds), f"the series is in {folder / 'vitals.csv'}", sep="\n")
        server.process.terminate()
        assert server.process.wait(EXIT_S) == 0
        check_log(server)
    return samples, rests[-1]


def report(samples: list[Sample], last: Scrape, book: Book, seconds: float) -> str:
    """What was done, and what it left behind."""
    statuses = Counter[int]()
    for (_, status), count in book.statuses.items():
        statuses[status] += count
    lines = [
        f"{seconds:.0f} s, {statuses.total() + book.left.total()} requests: {dict(sorted(statuses.items()))}, "
        f"{book.left.total()} left early",
        f"errors: {dict(sorted(book.codes.items()))}",
    ]
    counters = ("vllm:prompt_tokens", "vllm:generation_tokens", "vllm:num_preemptions", "octavo:steps", "octavo:audits")
    lines.append(", ".join(f"{name} {last.sum(f'{name}_total'):.0f}" for name in counters))
    lines.append(
        str(
            {
                dict(labels)["what"]: value
                for (name, labels), value in last.values.items()
                if name == "octavo:kv_offload_blocks_total"
            }
        )
    )
    for name in ("server", "engine"):
        for what in ("rss_bytes", "anon_bytes", "num_fds", "num_threads"):
            row = [typical(samples, name, what, phase) for phase in range(NUM_PHASES)]
            rest = [typical(samples, AT_REST + name, what, phase) for phase in range(NUM_PHASES)]
            lines.append(f"{name} {what}: medians {row}, at rest {rest}")
    return "\n".join(lines)


def check_flat(samples: list[Sample]) -> None:
    """After the warm-up, the last phase takes no more than the second."""
    for name in ("server", "engine"):
        for what in ("rss_bytes", "anon_bytes"):
            assert growth(samples, name, what, 1, NUM_PHASES - 1) < MOST_GROWTH, (name, what)
        for what in ("num_fds", "num_threads"):
            rest = AT_REST + name
            assert typical(samples, rest, what, NUM_PHASES - 1) <= typical(samples, rest, what, 1), (name, what)


def test_a_short_soak(default_model: Path, tmp_path: Path) -> None:
    run(default_model, tmp_path, SHORT_S)


@pytest.mark.slow
@pytest.mark.alone  # its objectives are of seconds
@pytest.mark.timeout(3 * LONG_S)
def test_twenty_minutes(default_model: Path, tmp_path: Path) -> None:
    samples, last = run(default_model, tmp_path, LONG_S)
    assert last.sum("vllm:num_preemptions_total") > 0
    check_flat(samples)
