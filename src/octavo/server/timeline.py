"""Timeline: what became of a request, as data and in sentences that have the arithmetic. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from octavo.core.events import Admitted, Computed, Embedded, EngineLost, Finished, Preempted, Queued, Refused
from octavo.core.snapshot import LiveRequest
from octavo.core.types import FinishReason
from octavo.core.waits import Waited
from octavo.server.caching import WHY
from octavo.server.recent import Happening, Story
from octavo.server.state_shapes import Ended, Moment, StoryShown
from octavo.server.telling import WAITS, miss_told, waits_told


def story_shown(story: Story, live: LiveRequest | None) -> StoryShown:
    """All that is known of one request to the engine; `live`: how it is now, where the engine has said so."""
    admitted, queued = story.started, story.queued
    return {
        "id": story.request_id,
        "state": _state(story, live),
        "tenant": "" if queued is None else queued.tenant,
        "choices": 1 if queued is None else queued.num_choices,
        "prompt_tokens": 0 if queued is None else queued.prompt_len,
        "cached_tokens": None if admitted is None else admitted.cached_tokens,
        "miss": None if admitted is None else miss_told(admitted.miss),
        "generated_tokens": sum(story.generated.values()),
        "preemptions": sum(isinstance(event, Preempted) for event in story.events),
        "queue_s": _since(story, None if admitted is None else admitted.time_s),
        "first_token_s": _since(story, min(story.first_s.values(), default=None)),
        "waited": waits_told(_all_waited(story, live)),
        "ended": _ended(story),
        "timeline": list(moments(story, live)),
        "omitted": story.num_omitted,
    }


def moments(story: Story, live: LiveRequest | None) -> Iterator[Moment]:
    """What happened, in order, each in a sentence; `at`: seconds since it came. At the end, how it is now."""
    told = [(event.time_s, _kind(event), _sentence(story, event)) for event in story.events]
    told += [(time_s, "first_token", _first(story, choice)) for choice, time_s in story.first_s.items()]
    if live is not None and live.lacks:
        told.append((live.arrival_s + sum(each.seconds for each in live.waited), "waiting", _waits_now(live)))
    for time_s, kind, text in sorted(told, key=lambda each: each[0]):
        yield {"at": round(max(0.0, time_s - story.came_s), 6), "kind": kind, "text": text}


def waits_in_words(waited: Iterable[Waited]) -> str:
    """`2.90 s for KV blocks (...), of which it needed 12 and there were 3, 300.0 ms for ...`; the longest first."""
    longest = sorted(waited, key=lambda each: -each.seconds)
    return ", ".join(
        f"{_duration(each.seconds)} {WAITS.get(each.reason, each.reason)}{_need(each)}" for each in longest
    )


def _need(each: Waited) -> str:
    return f", of which it needed {each.need} and there were {max(0, each.have)}" if each.need else ""


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _state(story: Story, live: LiveRequest | None) -> str:
    if live is not None:
        return str(live.state)
    last = story.events[-1] if story.events else None
    if isinstance(last, Refused):
        return "refused"
    if isinstance(last, EngineLost):
        return "lost"
    if not story.choices_left:
        return "finished"
    return "waiting" if story.started is None else "running"


def _since(story: Story, time_s: float | None) -> float | None:
    return None if time_s is None else round(time_s - story.came_s, 6)


def _all_waited(story: Story, live: LiveRequest | None) -> Sequence[Waited]:
    """By reason, over all its times in the queue."""
    spent: dict[str, Waited] = {}
    told = [each for event in story.events if isinstance(event, Admitted) for each in event.waited]
    for each in (*told, *(() if live is None else live.waited)):
        before = spent[each.reason].seconds if each.reason in spent else 0.0
        spent[each.reason] = Waited(each.reason, before + each.seconds, each.need, each.have)
    return list(spent.values())


def _ended(story: Story) -> list[Ended]:
    """One for each choice that is over."""
    return [
        {
            "choice": event.choice,
            "reason": _reason(story, event),
            "generated_tokens": story.generated.get(event.choice, 0),
            "at": _since(story, event.time_s),
            "code": event.code,
            "message": event.message,
        }
        for event in story.events
        if isinstance(event, Finished)
    ]


def _reason(story: Story, event: Finished) -> str:
    return FinishReason.STOP if event.choice in story.stopped else event.reason


# -- sentences -------------------------------------------------------------------------------------------------------


def _kind(event: Happening) -> str:
    return _SENTENCES[type(event)][0]


def _sentence(story: Story, event: Happening) -> str:
    return _SENTENCES[type(event)][1](story, event)


def _queued(story: Story, event: Queued) -> str:
    choices = f", for {event.num_choices} choices" if event.num_choices > 1 else ""
    return f"it came to the engine with {event.prompt_len} prompt tokens{choices}"


def _refused(story: Story, event: Refused) -> str:
    after = "" if event.retry_after_s is None else f"; told to come back after {event.retry_after_s} s"
    return f"it was refused, {event.code}: {event.message}{after}"


def _admitted(story: Story, event: Admitted) -> str:
    waits = waits_in_words(event.waited)
    waited = f"; it waited {waits}" if waits else ""
    if event.resumed:
        return f"choice {event.choice} goes on, {event.cached_tokens} tokens were still cached{waited}"
    prompt_len = 0 if story.queued is None else story.queued.prompt_len
    left = prompt_len - event.cached_tokens
    below = f" ({event.loaded_tokens} of them in the lower tier)" if event.loaded_tokens else ""
    found = f"{event.cached_tokens} of {prompt_len} prompt tokens were cached{below}, {left} are to be computed"
    why = "" if event.miss is None else f" ({event.miss.reason} at token {event.miss.at}: {WHY[event.miss.reason]})"
    return f"it started: {found}{why}{waited}"


def _computed(story: Story, event: Computed) -> str:
    rest = f", {event.num_left} are left" if event.num_left else ", which was the rest"
    return f"a chunk of {event.num_tokens} tokens was computed{rest}"


def _embedded(story: Story, event: Embedded) -> str:
    return f"its embedding is computed, of {event.num_tokens} tokens"


def _preempted(story: Story, event: Preempted) -> str:
    kept = f", {event.tokens_swapped} are kept" if event.tokens_swapped else ""
    times = f" (time {event.times})" if event.times > 1 else ""
    return (
        f"choice {event.choice} lost its blocks{times}: {event.reason}; "
        f"{event.tokens_lost} tokens are to be computed again{kept}"
    )


def _finished(story: Story, event: Finished) -> str:
    count, first = story.generated.get(event.choice, 0), story.first_s.get(event.choice)
    last = story.last_s.get(event.choice, event.time_s)
    pace = f", one each {_duration((last - first) / (count - 1))}" if first is not None and count > 1 else ""
    why = f": {event.message}" if event.message else ""
    return f"choice {event.choice} ended by {_reason(story, event)} after {count} tokens{pace}{why}"


def _lost(story: Story, event: EngineLost) -> str:
    return f"the engine was lost: {event.message.splitlines()[0] if event.message else 'it said nothing'}"


def _first(story: Story, choice: int) -> str:
    return (
        f"choice {choice} had its first token, {_duration(_since(story, story.first_s[choice]) or 0.0)} after it came"
    )


def _waits_now(live: LiveRequest) -> str:
    return f"it waits, so far {waits_in_words(live.waited)}; now {WAITS.get(live.lacks, live.lacks)}"


_SENTENCES: Mapping[type, tuple[str, Callable[[Story, Any], str]]] = {
    Queued: ("queued", _queued),
    Refused: ("refused", _refused),
    Admitted: ("admitted", _admitted),
    Computed: ("computed", _computed),
    Embedded: ("embedded", _embedded),
    Preempted: ("preempted", _preempted),
    Finished: ("finished", _finished),
    EngineLost: ("engine_lost", _lost),
}
