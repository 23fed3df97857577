"""Standard output for answers, standard error for what else a person should see."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

from octavo.config.logs import say

Show = Callable[[str], None]
"""Given text that is to appear."""


def write(text: str) -> None:
    """Prints `text` now, as it is."""
    sys.stdout.write(text)
    sys.stdout.flush()


def to_json(value: Any, indent: int | None = None) -> str:
    """As JSON. A path that is not UTF-8 stays one, with escapes once it is written."""
    return json.dumps(msgspec.to_builtins(value), ensure_ascii=False, indent=indent)


class NotText(ValueError):
    """Input that is not UTF-8."""


def check_text(text: str, what: str) -> None:
    """Raises NotText where `text` was made of bytes that are none."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) - 0xDC00
        raise NotText(f"{what} is not UTF-8: byte 0x{byte:02X} after {text[: error.start][-20:]!r}") from None


def note(text: str) -> None:
    """A line for a person, beside the answers."""
    say(f"octavo: {text}")


def ignore(_: str) -> None:
    return


@contextmanager
def status_line() -> Iterator[Show]:
    """One line that says what is going on, on a terminal, gone at the end; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield ignore
        return
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:
        yield status.update


Progress = Callable[[int, int, str], None]
"""Called with (bytes done, bytes in all or 0 where unknown, what is being done), as loaders do."""


@contextmanager
def download_progress() -> Iterator[Progress]:
    """A bar on a terminal, lines elsewhere; nothing at all, not even a loaded library, where nothing is downloaded."""
    with ExitStack() as open_bars:
        shown: list[Progress] = []

        def show(done: int, total: int, text: str) -> None:
            if not shown:
                shown.append(open_bars.enter_context(_bar()) if sys.stderr.isatty() else progress_lines(say))
            shown[0](done, total, text)

        yield show


@contextmanager
def _bar() -> Iterator[Progress]:
    """A line with a bar for each thing that is done."""
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.DownloadColumn(binary_units=True),
        rich.TransferSpeedColumn(),
    )
    with rich.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, rich.TaskID] = {}

        def show(done: int, total: int, text: str) -> None:
            if text not in tasks:
                tasks[text] = bar.add_task(text, total=None)
            bar.update(tasks[text], completed=done, total=total or None)

        yield show


def progress_lines(write_line: Show) -> Progress:
    """A Progress that writes a line when something begins, and at each quarter of it."""
    seen: dict[str, int] = {}

    def show(done: int, total: int, text: str) -> None:
        quarter = 4 * done // total if total else 0
        if text not in seen or quarter > seen[text]:
            seen[text] = quarter
            write_line(f"{text}: {25 * quarter} % of {total / 2**20:.1f} MiB" if quarter else text)

    return show
