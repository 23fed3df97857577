"""Standard output for answers, standard error for what else a person should see."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Show = Callable[[str], None]
"""Given text that is to appear."""


def write(text: str) -> None:
    """Prints `text` now, as it is."""
    sys.stdout.write(text)
    sys.stdout.flush()


def ignore(_: str) -> None:
    return


@contextmanager
def status_line() -> Iterator[Show]:
    """One line that says what is going on, on a terminal, gone at the end; nothing elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield ignore
        return
    with console.status("starting") as status:
        yield status.update


Progress = Callable[[int, int, str], None]
"""Called with (bytes done, bytes in all or 0 where unknown, what is being done), as loaders do."""


@contextmanager
def download_progress() -> Iterator[Progress]:
    """A bar on a terminal, lines elsewhere; nothing at all where there is nothing to download."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield progress_lines(lambda line: print(line, file=sys.stderr, flush=True))
        return
    from rich import progress as rich_progress

    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.DownloadColumn(binary_units=True),
        rich_progress.TransferSpeedColumn(),
    )
    with rich_progress.Progress(*columns, console=console, transient=True) as bar:
        tasks: dict[str, rich_progress.TaskID] = {}

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
