"""`octavo config`: each setting, its value, and where the value came from."""

import argparse
import sys
from collections.abc import Iterator

from octavo.config.rows import rows
from octavo.config.sources import Resolved
from octavo.tools.terminal import to_json


def main(resolved: Resolved, options: argparse.Namespace) -> int:
    text = as_json(resolved) if options.json else "\n".join(as_lines(resolved))
    sys.stdout.write(text + "\n")
    return 0


def as_lines(resolved: Resolved) -> Iterator[str]:
    """A table for people, a block for each part of the tree; what is not the default has a star."""
    section = ""
    for row in rows(resolved.config, resolved.origins):
        setting = row.setting
        if setting.section != section:
            yield f"{'' if not section else chr(10)}{setting.section}"
            section = setting.section
        star = " " if row.origin == "default" else "*"
        yield f" {star} {setting.name:30} {row.words:24} {row.origin}"


def as_json(resolved: Resolved) -> str:
    """A list of objects: setting, value, origin."""
    found = rows(resolved.config, resolved.origins)
    return to_json([{"setting": row.setting.path, "value": row.value, "origin": row.origin} for row in found], indent=2)
