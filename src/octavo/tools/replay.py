"""`octavo replay FILE`: does a fresh scheduler make the plans that a dump recorded? What differs first, and why."""

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from octavo.config.sources import Resolved
from octavo.engine import dump
from octavo.engine.replaying import Replayed, replay
from octavo.tools.terminal import to_json, write

HOW = {
    "by_beginning": "by their beginnings: of what was said the file has only which texts begin alike",
    "by_rank": "by rank: whoever knows the language may find out much of what was said",
}


class NoReplay(ValueError):
    """The file cannot be replayed; the message says why."""


def main(resolved: Resolved, options: argparse.Namespace) -> int:
    """Exit status 1 where a plan differs, something is raised, or a law is broken."""
    del resolved
    try:
        told = dump.read(Path(options.file))
    except (dump.DumpError, OSError) as error:
        raise NoReplay(str(error)) from error
    found = replay(told.record, audits=options.audit)
    if options.json:
        write(to_json(as_json(told, found), indent=2) + "\n")
    else:
        write("\n".join((*_head(told), *_plans(told, options.plans), *_verdict(told, found))) + "\n")
    return int(bool(found.difference or found.raised or found.violations))


def as_json(told: dump.Dump, found: Replayed) -> dict[str, Any]:
    about = {name: getattr(told, name) for name in ("reason", "message", "octavo", "fingerprint", "written")}
    return {**about, "num_lost": told.record.num_lost, **msgspec.to_builtins(found)}


def _head(told: dump.Dump) -> Iterator[str]:
    record = told.record
    when = datetime.fromtimestamp(told.written, UTC).isoformat(sep=" ", timespec="seconds")
    yield f"{told.reason}{f': {told.message}' if told.message else ''}"
    yield f"written {when} by octavo {told.octavo}, {told.fingerprint}"
    num_plans = sum(isinstance(entry, dump.Planned) for entry in record.entries)
    num_requests = sum(isinstance(entry, dump.Submitted) for entry in record.entries)
    yield f"{num_plans} plans, {num_requests} requests; tokens are told {HOW[record.tokens]}"
    if not record.num_lost:
        yield "the record goes back to the start of the engine"
    elif record.entries and isinstance(first := record.entries[0], dump.Quiet):
        yield (
            f"the record begins where nothing ran, after {record.num_lost} entries that are lost; {first.num_cached} "
            f"blocks were cached then: what the record hits of them is computed first, their order of eviction is lost"
        )
    else:
        yield f"{record.num_lost} entries are lost, and since then something was always live"


def _plans(told: dump.Dump, count: int) -> Iterator[str]:
    """The last ones, as they were."""
    names = {e.number: e.request.request_id for e in told.record.entries if isinstance(e, dump.Submitted)}
    plans = [entry for entry in told.record.entries if isinstance(entry, dump.Planned)]
    for plan in plans[len(plans) - count :] if count else ():
        works = ", ".join(
            f"{names.get(number, number)}/{choice} {start}+{length}"
            for number, choice, start, length, *_ in plan.rows or ()
        )
        yield f"  step {plan.step} at {plan.at:.3f} s: {'it broke' if plan.rows is None else works or 'no work'}"


def _verdict(told: dump.Dump, found: Replayed) -> Iterator[str]:
    difference = found.difference
    yield f"{found.num_plans} plans with {found.num_works} works are the same"
    if found.left_out:
        yield f"it goes no further: {found.left_out}"
    if difference is not None:
        yield f"the plan of step {difference.step} differs: {difference.why}"
        yield from (f"  then  {line}" for line in difference.recorded)
        yield from (f"  now   {line}" for line in difference.replayed)
    if found.raised:
        again = "as it did then" if found.broke else "which it did not then"
        yield f"it breaks, {again}: {found.raised}"
    yield from (f"a law is broken: {violation}" for violation in found.violations)
