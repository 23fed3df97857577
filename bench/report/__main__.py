"""`python -m bench.report run|render FILE`. See the package."""

import argparse
import sys
from pathlib import Path

from bench.report import __doc__ as usage
from bench.report.kernels import KERNELS
from bench.report.machine import machine
from bench.report.peers import PEERS
from bench.report.policy import POLICY
from bench.report.render import from_json, page, to_json
from bench.report.section import Conditions, Report, Section, run
from bench.report.steps import STEPS

SECTIONS = (PEERS, STEPS, KERNELS, POLICY)


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
    report = from_json(file.read_text(encoding="utf-8")) if file.exists() else Report()
    for section in sections:
        print(f"measuring: {section.title}", file=sys.stderr)
        peers = " --peers DIR" if section.needs_peers else ""
        command = f"python -m bench.report run FILE --only {section.name}{peers}"
        report = report.with_section(run(section, conditions, machine(), command))
        file.write_text(to_json(report), encoding="utf-8")


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=usage, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "render"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", action="append", default=[], metavar="SECTION", help="may be repeated")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="where other engines are installed")
    parser.add_argument("--model", help="default: the default model")
    options = parser.parse_args(words)
    try:
        if options.action == "render":
            sys.stdout.write(page(from_json(options.file.read_text(encoding="utf-8"))))
        else:
            conditions = Conditions(options.peers, options.model)
            run_all(options.file, chosen(options.only, conditions), conditions)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
