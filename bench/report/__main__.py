"""`python -m bench.report run|render FILE`. See the package."""

import argparse
import signal
import sys
from pathlib import Path

from bench.report import __doc__ as usage
from bench.report.context import CONTEXT
from bench.report.formats import FORMATS
from bench.report.installed import versions
from bench.report.kernels import KERNELS
from bench.report.machine import machine
from bench.report.memory import MEMORY
from bench.report.peers import PEERS
from bench.report.plots import draw_all
from bench.report.policy import POLICY
from bench.report.render import from_json, page, plots, to_json
from bench.report.section import Conditions, Section, run
from bench.report.served import SERVED
from bench.report.shapes import SHAPES
from bench.report.steps import STEPS

SECTIONS = (PEERS, CONTEXT, SHAPES, SERVED, MEMORY, FORMATS, POLICY, STEPS, KERNELS)


def chosen(only: list[str], conditions: Conditions) -> list[Section]:
    """Those that were named, else all that can run. Raises ValueError for one that is not there, or cannot run."""
    known = {section.name: section for section in SECTIONS}
    for name in only:
        if name not in known:
            raise ValueError(f"there is no section {name!r}; there are {', '.join(known)}")
        if known[name].needs_peers and conditions.peers is None:
            raise ValueError(f"section {name} needs --peers DIR")
    if only:
        return [known[name] for name in only]
    return [section for section in SECTIONS if conditions.peers is not None or not section.needs_peers]


def run_all(file: Path, sections: list[Section], conditions: Conditions) -> None:
    """Writes the file after each section, so that what was measured is kept whatever comes after."""
    report = from_json(file.read_text(encoding="utf-8")) if file.exists() else {}
    for section in sections:
        print(f"measuring: {section.title}", file=sys.stderr)
        peers = " --peers DIR" if section.needs_peers else ""
        command = f"python -m bench.report run FILE --only {section.name}{peers}"
        measured = run(section, conditions, machine(conditions.peers), command)
        for failure in measured.failures:
            print(f"not measured: {failure['failed']}: {failure['why']}", file=sys.stderr)
        report = {**report, section.name: measured}
        file.write_text(to_json(report), encoding="utf-8")


def write_page(file: Path, target: Path) -> None:
    """The page, and its plots in a folder beside it that has its name."""
    report = from_json(file.read_text(encoding="utf-8"))
    draw_all(plots(report, SECTIONS), target.with_suffix(""))
    target.write_text(page(report, SECTIONS, target.stem), encoding="utf-8")


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=usage, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    runs = actions.add_parser("run", help="measure, into a file")
    runs.add_argument("file", type=Path)
    runs.add_argument("--only", action="append", default=[], metavar="SECTION", help="may be repeated")
    runs.add_argument("--peers", type=Path, metavar="DIR", help="where other engines are installed")
    runs.add_argument("--model", help="default: the default model")
    renders = actions.add_parser("render", help="make the page of a file")
    renders.add_argument("file", type=Path)
    renders.add_argument("page", type=Path)
    options = parser.parse_args(words)
    try:
        if options.action == "render":
            write_page(options.file, options.page)
        else:
            conditions = Conditions(_checked(options.peers), options.model)
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that nothing it started stays
            run_all(options.file, chosen(options.only, conditions), conditions)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    return 0


def _checked(peers: Path | None) -> Path | None:
    """Raises ValueError for a folder in which no other engine is."""
    if peers is not None and not versions(peers):
        raise ValueError(f"--peers {peers}: no other engine is installed there")
    return None if peers is None else peers.resolve()


if __name__ == "__main__":
    sys.exit(main())
