"""`octavo top`: a running server in the terminal: rates, latencies, queue, the KV cache block by block, requests."""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from octavo.config.sources import Resolved
from octavo.core.snapshot import gathered
from octavo.tools import visit
from octavo.tools.terminal import to_json, write

PATIENCE_S = 5.0
_NARROW = 100
"""Below so many columns some of what is known of a request is left out; below 60 some more."""
_MOST_MAP_LINES = 8
_STYLES = {".": "grey50", "c": "blue", "L": "green", "S": "bright_green", "P": "magenta"}
"""Of the cells of the map."""
_NAMES = {".": "blank", "c": "cached", "L": "leased", "S": "shared", "P": "pinned"}

State = Mapping[str, Any]


def main(resolved: Resolved, options: argparse.Namespace) -> int:
    """Until Ctrl-C; or once, where that is asked for or standard output is no terminal."""
    url = visit.url_of(resolved.config, options)

    def look() -> State:
        return visit.ask(resolved.config, options, "GET", "/octavo/v1/state", patience_s=PATIENCE_S)

    if options.json:
        write(to_json(look(), indent=2) + "\n")
    elif options.once or not sys.stdout.isatty():
        Console().print(view(look(), url, Console().width, None))
    else:
        _watch(look, url, max(0.1, options.interval))
    return 0


def _watch(look: Callable[[], State], url: str, interval_s: float) -> None:
    console = Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for shown in frames(look, url, console):
            live.update(shown, refresh=True)
            time.sleep(interval_s)


def frames(look: Callable[[], State], url: str, console: Console) -> Iterator[RenderableType]:
    """What is on the screen, one look after the other. A server that does not answer is asked again, for ever."""
    last: State | None = None
    while True:
        try:
            last = look()
        except visit.ServerRefused as error:
            yield _absent(error, last, url, console)
            continue
        yield view(last, url, console.width, console.height)


def _absent(error: Exception, last: State | None, url: str, console: Console) -> RenderableType:
    words = Text(f"{error}; asking again", style="bold red")
    if last is None:
        return words
    return Group(words, view(last, url, console.width, console.height - 1))


def view(state: State, url: str, width: int, height: int | None) -> RenderableType:
    """A server at a glance, in so many columns and, where that is limited, lines."""
    head = [_head(state, url), *_warnings(state)]
    if state["load"] is None:
        return Group(*head, Text(f"the engine is {state['engine']['state']}: {state['engine']['progress']}"))
    block_map = list(_map(state, width))
    parts = [*head, _load(state), _rates(state), Text(), _latencies(state), Text(), *block_map, Text()]
    num_lines = len(head) + 2 + 1 + 5 + 1 + len(block_map) + 1
    room = None if height is None else max(0, height - num_lines - 2)
    return Group(*parts, _requests(state, width, room))


def _head(state: State, url: str) -> Text:
    server, engine = state["server"], state["engine"]
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(" ".join(server["models"][:1]), style="bold")
    kernels = f"{engine['isa']}, {engine['num_threads']} threads, " if engine["isa"] else ""
    draining = ", draining" if server["draining"] else ""
    up = _duration(server["uptime_s"])
    text.append(f"  {engine['state']}{draining}  {url}  {kernels}up {up}, octavo {server['version']}")
    return text


def _warnings(state: State) -> Iterator[Text]:
    """What should not be so."""
    totals, engine = state["totals"], state["engine"]
    lost = f"the engine was lost {engine['lost']} times" if engine["lost"] else ""
    stalls = f"{totals['stalls']} stalls" if totals["stalls"] else ""
    violations = f"{totals['violations']} laws broken" if totals["violations"] else ""
    silent = engine["heartbeat_age_s"]
    silence = f"no sign of life for {silent:.0f} s" if engine["state"] == "ready" and silent > PATIENCE_S else ""
    old = f"the state is {state['age_s']:.0f} s old: a step takes long" if (state["age_s"] or 0) > PATIENCE_S else ""
    words = [word for word in (lost, stalls, violations, silence, old) if word]
    if words:
        yield Text("; ".join(words), style="bold red")


def _load(state: State) -> Text:
    load, limits = state["load"], state["limits"]
    waits = ", ".join(f"{count} for {reason}" for reason, count in load["lacks"].items())
    running = f"running {load['running']}/{limits['max_num_seqs']}"
    waiting = f"waiting {load['waiting']}{f' ({waits})' if waits and load['waiting'] else ''}"
    used = load["kv_usage"]
    text = Text(f"{running}  {waiting}  ")
    text.append(f"KV {used:4.0%} ", style="red" if used > 0.95 else "")
    return text.append_text(_bar(used, 20))


def _rates(state: State) -> Text:
    window = state["window"]
    hits = "-" if window["hit_rate"] is None else f"{window['hit_rate']:.0%}"
    batch = "-" if window["tokens_per_step"] is None else f"{window['tokens_per_step']:.1f}"
    preempted = f"  preempted {window['preemptions']}" if window["preemptions"] else ""
    refused = f"  refused {window['refused_per_s']:.1f}/s" if window["refused_per_s"] else ""
    return Text(
        f"tokens/s {window['generated_tokens_per_s']:.1f} out {window['prompt_tokens_per_s']:.1f} in  "
        f"requests/s {window['requests_per_s']:.2f}  steps/s {window['steps_per_s']:.1f} of {batch} tokens  "
        f"hit rate {hits}{preempted}{refused}  (last {window['seconds']:.0f} s)"
    )


def _latencies(state: State) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("latency", "p50", "p90", "p99", "count"):
        table.add_column(name, justify="left" if name == "latency" else "right", no_wrap=True)
    for name, key in (
        ("in the queue", "queue"),
        ("first token", "first_token"),
        ("between tokens", "inter_token"),
        ("whole answer", "whole"),
    ):
        spread = state["window"][key]
        table.add_row(name, *(_seconds(spread[share]) for share in ("p50", "p90", "p99")), str(spread["count"]))
    return table


def _map(state: State, width: int) -> Iterator[Text]:
    """The KV cache, a character for each cell, in lines as long as the terminal is wide; then what they mean."""
    shown = state["map"]
    cells, size = gathered(shown["cells"], width * _MOST_MAP_LINES)
    for at in range(0, len(cells), width):
        yield _coloured(cells[at : at + width])
    size *= shown["blocks_per_cell"]
    blocks = state["load"]["blocks"]
    text = Text(no_wrap=True, overflow="ellipsis")
    for mark, name in _NAMES.items():
        text.append(mark, style=_STYLES[mark])
        text.append(f" {name} {blocks[name]}  " if name in blocks else f" {name}  ")
    text.append(f"reserved {blocks['reserved']}{f'  {size} blocks a cell' if size > 1 else ''}")
    yield text


def _coloured(cells: str) -> Text:
    """One style for each run of equal cells."""
    text = Text(no_wrap=True)
    start = 0
    for at in range(1, len(cells) + 1):
        if at == len(cells) or cells[at] != cells[start]:
            text.append(cells[start:at], style=_STYLES[cells[start]])
            start = at
    return text


_COLUMNS: tuple[tuple[str, int, Callable[[Mapping[str, Any]], str]], ...] = (
    ("request", 0, lambda one: one["id"]),
    ("tenant", _NARROW, lambda one: one["tenant"] or "-"),
    ("state", 0, lambda one: one["state"]),
    ("age", 0, lambda one: _duration(one["age_s"])),
    ("prompt", 0, lambda one: str(one["prompt_tokens"])),
    ("cached", _NARROW, lambda one: "-" if one["cached_tokens"] is None else str(one["cached_tokens"])),
    ("out", 0, lambda one: str(one["generated_tokens"])),
    ("blocks", 60, lambda one: str(one["blocks"])),
    ("preempted", _NARROW, lambda one: str(one["preemptions"])),
    ("waits for", 60, lambda one: _waits(one)),
)
"""Of the table of requests: a name, the width of a terminal from which it is shown, and its text."""
_LEFT = ("request", "tenant", "state", "waits for")
_SHRINK = ("request", "waits for")
"""Where a line is too long these lose their ends; a number with its end cut off would be another number."""


def _requests(state: State, width: int, room: int | None) -> RenderableType:
    """The live requests that hold the most blocks, then those that wait the longest; as many as there is room for."""
    rows = sorted(state["requests"], key=lambda one: (-one["blocks"], -one["age_s"]))
    shown = rows if room is None else rows[:room]
    columns = [column for column in _COLUMNS if width >= column[1]]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name, *_ in columns:
        table.add_column(name, justify="left" if name in _LEFT else "right", no_wrap=name not in _SHRINK)
    for one in shown:
        table.add_row(*(Text(text(one), no_wrap=True, overflow="ellipsis") for _, _, text in columns))
    left = state["num_requests"] - len(shown)
    return Group(table, Text(f"and {left} more")) if left > 0 else table


def _waits(one: Mapping[str, Any]) -> str:
    """`blocks 2.3s (12 of 3)`: for what now, how long in all, how much it needs and there is."""
    if not one["lacks"]:
        return ""
    seconds = sum(each["seconds"] for each in one["waited"])
    need = next((each for each in one["waited"] if each["reason"] == one["lacks"] and each["need"]), None)
    numbers = "" if need is None else f" (needs {need['need']}, has {max(0, need['have'])})"
    return f"{one['lacks']} {_duration(seconds)}{numbers}"


def _bar(share: float, width: int) -> Text:
    full = round(share * width)
    return Text("█" * full, style="green").append("░" * (width - full), style="grey50")


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"


def _duration(seconds: float) -> str:
    """`0.4s`, `17s`, `3m20s`, `5h12m`, `3d4h`."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [f"{count}{unit}" for count, unit in ((days, "d"), (hours, "h"), (minutes, "m"), (rest, "s"))]
    first = next(place for place, count in enumerate((days, hours, minutes, 1)) if count)
    return "".join(parts[first : first + 2])
