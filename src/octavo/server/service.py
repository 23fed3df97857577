"""Service: what every endpoint needs, and nothing that belongs to one request."""

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

from octavo.config.pooler import read_pooler
from octavo.config.schema import Config
from octavo.config.tenants import Tenant
from octavo.engine.asks import Ask
from octavo.engine.client import EngineClient, EngineFacts, EngineState
from octavo.engine.clock import now
from octavo.engine.heap import give_back
from octavo.models.catalog import names_of
from octavo.server.catalogue.compatible import cache_config
from octavo.server.catalogue.metric import Sources
from octavo.server.doorway import Doorway
from octavo.server.duty import Duty
from octavo.server.exposition import registry_of
from octavo.server.feed import Feed
from octavo.server.glance import Glance
from octavo.server.journal import Journal
from octavo.server.listeners import Listeners
from octavo.server.metrics import Meters
from octavo.server.openai.errors import ApiError, shutting_down, too_long, unavailable, unknown_model
from octavo.server.recent import Recent
from octavo.server.spans import Traces
from octavo.server.tenancy import Tenancy
from octavo.server.trials import Trials
from octavo.server.visits import Visits
from octavo.server.window import Window
from octavo.text.calls.formats import FORMATS, Format, format_of
from octavo.text.chat import ChatTemplate
from octavo.text.tokenizer import Tokenizer, TooLong

KEEP_ALIVE_S = 10.0
"""A stream that has nothing to say says so this often."""
PATIENCE_S = 15.0
"""Without a sign of life for this long the engine counts as stuck. In a long step it gives one twice a second."""
LONG_TEXT = 20_000
"""Characters, tokens, or bytes of a body, from which work on them moves to a thread and holds up no streams."""
AT_ONCE = 2
"""Of those, also where their clients have gone: a text takes some 100 bytes of memory for each character meanwhile."""
_SAFE_SEED_BITS = 53
"""A drawn seed is exact in every JSON reader, those with doubles only too."""

R = TypeVar("R")
T = TypeVar("T")


class Service:
    """One engine, its tokenizer and template, under the names that clients know."""

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        config: Config,
        origins: Mapping[str, Any] | None = None,
    ) -> None:
        """`origins`: where each setting came from, by its name, where that is known."""
        self.client = client
        self.tokenizer = tokenizer
        self.template = template
        self.config = config
        self.origins = origins or {}
        self.pooler = read_pooler(config.model.pooler_config)
        self.duty = Duty()
        self.trials = Trials()
        self.began_s = now()
        self.window = Window(self.began_s)
        self.recent = Recent(self.window)
        self.meters = Meters(self.recent.was_stopped)
        self.visits = Visits()
        self.doorway = Doorway(config, self.meters)
        self.tenancy = Tenancy(config, self.meters)
        self.registry = registry_of(self._sources)
        self.tool_format = _tool_format(config.server.tool_call_parser, "" if template is None else template.source)
        self.keep_alive_s = KEEP_ALIVE_S
        self._long_texts = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="long-texts")
        self.began = int(time.time())
        self.openapi: dict[str, Any] = {}
        seed = config.model.seed
        self._seeds = secrets.SystemRandom() if seed is None else random.Random(seed)
        self.epoch_s = time.time() - now()
        """The engine's clock is so much behind the seconds since 1970."""
        self.feed = Feed()
        self.glance = Glance(client)
        self.journal = Journal(self.recent, config.observability)
        self.listeners = Listeners()
        for each in (self.meters, self.recent, self.journal):
            self.listeners.add(each.handlers)
        self.listeners.add_all(self.feed.on_events)
        self.traces: Traces | None = None
        """Who makes spans, where traces are asked for."""
        self._span_counts: Mapping[str, int] = {}
        client.listen(self.listeners.on_events)

    def trace(self, traces: Traces, counts: Mapping[str, int]) -> None:
        """Requests are traced from now on; `counts`: what becomes of spans."""
        self.traces, self._span_counts = traces, counts
        self.listeners.add(traces.handlers)

    @property
    def facts(self) -> EngineFacts:
        """Raises ApiError 503 where the engine cannot serve: still loading, or dead."""
        state = self.client.state
        if state is EngineState.READY:
            return self.client.facts
        if state is EngineState.STARTING:
            raise unavailable(f"the model is still loading: {self.client.progress or 'starting'}", "loading")
        raise unavailable("the engine has died, and the server is about to end", "engine_dead")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the model; answers carry the first."""
        return names_of(self.config.model.model, self.config.model.served_model_name)

    def context(self, tenant: Tenant) -> int:
        """The most tokens that prompt and answer of one choice may have. Raises ApiError 503 as `facts` does."""
        most, context = tenant.rules.max_tokens_per_request, self.facts.capacity.max_model_len
        return context if most is None else min(most, context)

    def context_flag(self, tenant: Tenant) -> str:
        """What set it, for whoever wants more."""
        whole = self.context(tenant) == self.facts.capacity.max_model_len
        return "--max-model-len" if whole else "max_tokens_per_request of the tenant"

    def _sources(self) -> Sources:
        """What metrics are read from."""
        facts = self.client.facts if self.client.state is EngineState.READY else None
        return Sources(
            meters=self.meters,
            visits=self.visits,
            labels={"model_name": self.names[0], "engine": "0"},
            cache_config={} if facts is None else cache_config(self.config.cache, facts),
            facts=facts,
            state=self.client.state,
            heartbeat_age_s=self.client.heartbeat_age_s,
            in_flight=self.duty.in_flight,
            draining=self.duty.draining,
            events_lost=self.feed.num_lost,
            span_counts=self._span_counts,
        )

    def check_model(self, name: str | None) -> None:
        """Raises ApiError 404 for a model that is not served. None is the one that is."""
        if name is not None and name not in self.names:
            raise unknown_model(name, self.names)

    def seed(self, given: int | None) -> int:
        """The seed of a request: the client's, as 64 bits without a sign, or one drawn now."""
        return self._seeds.getrandbits(_SAFE_SEED_BITS) if given is None else given % 2**64

    def health(self) -> ApiError | None:
        """What is wrong with the engine, so that a restart would help; None where nothing is. Loading is no illness."""
        if self.client.state is EngineState.DEAD:
            return unavailable("the engine has died", "engine_dead")
        age = self.client.heartbeat_age_s
        if self.client.state is EngineState.READY and age > PATIENCE_S:
            return unavailable(f"the engine has shown no sign of life for {age:.0f} s", "engine_stuck")
        return None

    def readiness(self) -> ApiError | None:
        """Why a request would not be served now; None where it would."""
        if self.duty.leaving:
            return shutting_down("the server is shutting down")
        if self.client.state is EngineState.STARTING:
            return unavailable(f"the model is still loading: {self.client.progress or 'starting'}", "loading")
        return self.health()

    async def ask(self, ask: Ask[R]) -> R:
        """What the engine answers, between two steps. Raises ApiError 503 where it cannot serve."""
        _ = self.facts
        return await self.client.ask(ask)

    async def off_loop(self, size: int, work: Callable[[], T]) -> T:
        """`work()`, in a thread where it is about many characters, numbers or bytes. Raises ApiError 400: too many."""
        try:
            if size <= LONG_TEXT:
                return work()
            context = copy_context()  # so that a line of the log still says whose request it is about
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._long_texts, lambda: context.run(_and_give_back, work))
        except TooLong as error:
            raise too_long(error.at_most, f", but the prompt has at least {error.least:,}") from None


def _and_give_back(work: Callable[[], T]) -> T:
    """Does it, and gives the memory that it took for a moment back to the system."""
    try:
        return work()
    finally:
        give_back()


def _tool_format(parser: str, template: str) -> Format:
    """The form in which the model writes tool calls."""
    return FORMATS[format_of(template) if parser == "auto" else parser]
