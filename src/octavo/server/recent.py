"""Recent: what became of the last requests, and of those that are live. A memory of fixed size, fed by events."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.core.events import (
    Admitted,
    Computed,
    Embedded,
    EngineLost,
    EngineReady,
    Event,
    Finished,
    Generated,
    Preempted,
    Queued,
    Refused,
    Stepped,
)
from octavo.core.types import RequestId
from octavo.server.listeners import Handler, one_by_one
from octavo.server.window import Window

MOST_OVER = 1000
"""Requests to the engine that are over and still remembered."""
MOST_NAMES = 4096
"""Ids of HTTP requests that are remembered."""
MOST_EVENTS = 100
"""Of one request to the engine; of what comes between, only the number is kept."""

Happening = Queued | Refused | Admitted | Computed | Embedded | Preempted | Finished | EngineLost


@dataclass(frozen=True, slots=True)
class Origin:
    """The HTTP request that others came from."""

    name: str
    """What the ids of its requests to the engine begin with."""
    path: str
    tenant: str
    x_request_id: str


class Story:
    """What happened to one request to the engine."""

    __slots__ = (
        "came_s",
        "choices_left",
        "events",
        "first_s",
        "generated",
        "last_s",
        "num_omitted",
        "queued",
        "request_id",
        "stopped",
    )

    def __init__(self, request_id: RequestId, num_choices: int, came_s: float) -> None:
        self.request_id = request_id
        self.queued: Queued | None = None
        self.came_s = came_s
        """When the server had it."""
        self.events: list[Happening] = []
        self.num_omitted = 0
        """Events between the first ones and the last that were not kept."""
        self.first_s: dict[int, float] = {}
        """Choice -> the time of its first token; of the last one in `last_s`."""
        self.last_s: dict[int, float] = {}
        self.generated: dict[int, int] = {}
        """Choice -> its tokens so far."""
        self.stopped: set[int] = set()
        """Choices that a stop string ended. The engine, which knows no text, says that they were aborted."""
        self.choices_left = num_choices

    @property
    def started(self) -> Admitted | None:
        """When it ran for the first time."""
        return next((event for event in self.events if isinstance(event, Admitted) and not event.resumed), None)

    def note(self, event: Happening) -> None:
        if len(self.events) >= MOST_EVENTS:
            del self.events[MOST_EVENTS // 2]
            self.num_omitted += 1
        self.events.append(event)


class Recent:
    """Stories by the ids of requests to the engine, and these by all names that a client may know."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._live: dict[RequestId, Story] = {}
        self._over: OrderedDict[RequestId, Story] = OrderedDict()
        self._origins: OrderedDict[str, Origin] = OrderedDict()
        self._aliases: OrderedDict[tuple[str | None, str], str] = OrderedDict()
        """What clients call their requests, each tenant its own, and under no tenant whoever said so last."""
        self.ready_s: float | None = None
        """When the first engine became ready."""
        single: Mapping[type, Callable[[Any], None]] = {
            EngineReady: self._ready,
            Queued: self._queued,
            Refused: self._refused,
            Admitted: self._admitted,
            Computed: self._happened,
            Embedded: self._happened,
            Preempted: self._preempted,
            Finished: self._finished,
            Stepped: self._stepped,
            EngineLost: self._lost,
        }
        self.handlers: Mapping[type, Handler] = {**one_by_one(single), Generated: self._generated}

    def came(self, origin: Origin, also: str | None = None) -> None:
        """An HTTP request is about to ask the engine. Its client knows it by `x_request_id`, and maybe `also`."""
        _remember(self._origins, origin.name, origin)
        for alias in filter(None, (origin.x_request_id, also)):
            for whose in (origin.tenant, None):
                _remember(self._aliases, (whose, alias), origin.name)

    def stopped(self, request_id: RequestId, choice: int) -> None:
        """A stop string ended this choice."""
        if request_id in self._live:
            self._live[request_id].stopped.add(choice)

    def on_event(self, event: Event) -> None:
        handler = self.handlers.get(type(event))
        if handler is not None:
            handler((event,))

    def find(self, name: str, tenant: str | None = None) -> tuple[Origin | None, Sequence[Story]]:
        """What is known under the id of an answer, of an HTTP request, or of a request to the engine.

        `tenant`: who asks, where one tenant's ids must not hide another's.
        """
        tails = (name, name.partition("-")[2], name.partition("_")[2])
        for own in dict.fromkeys(each for tail in tails for each in (tail, self._aliases.get((tenant, tail), ""))):
            stories = self._stories(own)
            if own and (stories or own in self._origins):
                return self._origins.get(own) or self._origins.get(own.rpartition("-")[0]), stories
        return None, ()

    def cached_tokens(self, request_id: RequestId) -> int | None:
        """Of its prompt, as far as it has started."""
        story = self._live.get(request_id)
        started = None if story is None else story.started
        return None if started is None else started.cached_tokens

    def was_stopped(self, request_id: RequestId, choice: int) -> bool:
        """Did a stop string end this choice?"""
        story = self._story(request_id)
        return story is not None and choice in story.stopped

    def is_live(self, story: Story) -> bool:
        return story.request_id in self._live

    def _story(self, request_id: RequestId) -> Story | None:
        return self._live.get(request_id) or self._over.get(request_id)

    def _stories(self, name: str) -> list[Story]:
        exact = self._story(name)
        if exact is not None:
            return [exact]
        found = list[Story]()
        while (story := self._story(f"{name}-{len(found)}")) is not None:
            found.append(story)
        return found

    def _ready(self, event: EngineReady) -> None:
        self.ready_s = event.time_s if self.ready_s is None else self.ready_s

    def _queued(self, event: Queued) -> None:
        story = Story(event.request_id, event.num_choices, event.came_s)
        story.queued = event
        story.note(event)
        self._live[event.request_id] = story

    def _refused(self, event: Refused) -> None:
        """One with the id of a live request is none of its own: what is known of that one stays."""
        self._window.count("refused", 1, event.time_s)
        if event.request_id not in self._live:
            story = Story(event.request_id, 0, event.time_s)
            story.note(event)
            self._remember_over(story)

    def _admitted(self, event: Admitted) -> None:
        story = self._live.get(event.request_id)
        if story is None:
            return
        story.note(event)
        if story.queued is not None and not event.resumed:
            self._window.note("queue", event.time_s - story.came_s, event.time_s)
            self._window.count("prompt_tokens", story.queued.prompt_len, event.time_s)
            self._window.count("cached_tokens", event.cached_tokens, event.time_s)

    def _happened(self, event: Computed | Embedded | Preempted) -> None:
        story = self._live.get(event.request_id)
        if story is not None:
            story.note(event)

    def _preempted(self, event: Preempted) -> None:
        self._window.count("preemptions", 1, event.time_s)
        self._happened(event)

    def _generated(self, events: Sequence[Generated]) -> None:
        pauses, total = dict[float, int](), 0
        for event in events:
            story = self._live.get(event.request_id)
            if story is None:
                continue
            choice, time_s, count = event.choice, event.time_s, len(event.tokens)
            total += count
            before = story.last_s.get(choice)
            story.last_s[choice] = time_s
            if before is not None:
                story.generated[choice] += count
                pause = (time_s - before) / count
                pauses[pause] = pauses.get(pause, 0) + 1
            else:
                self._begun(story, choice, time_s)
                story.generated[choice] = count
        at_s = events[-1].time_s
        self._window.count("generated_tokens", total, at_s)
        for pause, times in pauses.items():
            self._window.note("inter_token", pause, at_s, times)

    def _begun(self, story: Story, choice: int, time_s: float) -> None:
        if not story.first_s:
            self._window.note("first_token", time_s - story.came_s, time_s)
        story.first_s[choice] = time_s

    def _finished(self, event: Finished) -> None:
        story = self._live.get(event.request_id)
        if story is None:
            return
        story.note(event)
        story.choices_left -= 1
        if story.choices_left:
            return
        del self._live[event.request_id]
        self._remember_over(story)
        self._window.count("finished", 1, event.time_s)
        self._window.note("whole", event.time_s - story.came_s, event.time_s)

    def _stepped(self, event: Stepped) -> None:
        if event.num_tokens:
            self._window.count("steps", 1, event.time_s)
            self._window.count("step_tokens", event.num_tokens, event.time_s)

    def _lost(self, event: EngineLost) -> None:
        for story in self._live.values():
            story.note(event)
            self._remember_over(story)
        self._live.clear()

    def _remember_over(self, story: Story) -> None:
        self._over[story.request_id] = story
        self._over.move_to_end(story.request_id)
        if len(self._over) > MOST_OVER:
            self._over.popitem(last=False)


def _remember(names: OrderedDict[Any, Any], name: Any, value: Any) -> None:
    names[name] = value
    names.move_to_end(name)
    if len(names) > MOST_NAMES:
        names.popitem(last=False)
