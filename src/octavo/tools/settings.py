"""`octavo config`: each setting, its value, and where the value came from."""

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from octavo.config.schema import Setting, settings
from octavo.config.sources import Resolved
from octavo.tools.terminal import to_json


def main(resolved: Resolved, options: argparse.Namespace) -> int:
    text = as_json(resolved) if options.json else "\n".join(as_lines(resolved))
    sys.stdout.write(text + "\n")
    return 0


def as_lines(resolved: Resolved) -> Iterator[str]:
    """A table for people, a block for each part of the tree; what is not the default has a star."""
    section = ""
    for setting in settings().values():
        if setting.section != section:
            yield f"{'' if not section else chr(10)}{setting.section}"
            section = setting.section
        origin = resolved.origins[setting.name]
        star = " " if origin.kind == "default" else "*"
        yield f" {star} {setting.name:30} {_words(setting, value_of(resolved, setting)):24} {origin}"


def as_json(resolved: Resolved) -> str:
    """A list of objects: setting, value, origin."""
    rows = [
        {
            "setting": setting.path,
            "value": _hidden(setting, value_of(resolved, setting)),
            "origin": str(resolved.origins[setting.name]),
        }
        for setting in settings().values()
    ]
    return to_json(rows, indent=2)


def value_of(resolved: Resolved, setting: Setting) -> Any:
    return getattr(getattr(resolved.config, setting.section), setting.name)


def _hidden(setting: Setting, value: Any) -> Any:
    return ["***"] * len(value) if setting.option.secret else value


def _words(setting: Setting, value: Any) -> str:
    """As it could be given: `auto`, `true`, `a,b`; a dash for none."""
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return str(value).lower()
    return (",".join(_hidden(setting, value)) if isinstance(value, tuple) else str(value)) or "-"
