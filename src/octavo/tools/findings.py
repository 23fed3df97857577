"""Findings: what a check of the doctor says, and how it is printed. A check that raises is a finding, too."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import msgspec

from octavo.tools.terminal import to_json

T = TypeVar("T")


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """It works, but not as one may expect."""
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: one line, and lines below it where there is more to say."""

    state: State
    text: str
    details: tuple[str, ...] = ()


def examine(subject: T, checks: Mapping[str, Callable[[T], Finding]]) -> dict[str, Finding]:
    return {name: _examined(check, subject) for name, check in checks.items()}


def _examined(check: Callable[[T], Finding], subject: T) -> Finding:
    try:
        return check(subject)
    except Exception as error:  # noqa: BLE001 - whatever is wrong is what we are here to say
        return Finding(State.BROKEN, f"{type(error).__name__}: {' '.join(str(error).split())}")


def is_broken(findings: Mapping[str, Finding]) -> bool:
    return any(finding.state is State.BROKEN for finding in findings.values())


def as_text(findings: Mapping[str, Finding]) -> str:
    lines: list[str] = []
    for name, finding in findings.items():
        lines.append(f"{finding.state:8} {name:13} {finding.text}")
        lines += [f"{'':22} {detail}" for detail in finding.details]
    return "\n".join(lines)


def as_json(findings: Mapping[str, Finding]) -> str:
    rows = [{"check": name, **msgspec.to_builtins(finding)} for name, finding in findings.items()]
    return to_json(rows, indent=2)
