"""`octavo pin`: keep the beginning of prompts in the cache of a running server: add, list, remove."""

import argparse
from typing import Any

from octavo.config.sources import Resolved
from octavo.tools import visit
from octavo.tools.terminal import to_json, write

_PATH = "/octavo/v1/pins"


def main(resolved: Resolved, options: argparse.Namespace) -> int:
    """Prints what there is then: one line for each pin, or JSON."""
    answer = _ACTIONS[options.action](resolved, options)
    write((to_json(answer) if options.json else _as_text(answer)) + "\n")
    return 0


def _add(resolved: Resolved, options: argparse.Namespace) -> dict[str, Any]:
    if not options.text and not (options.chat and options.system):
        raise visit.ServerRefused("a text is missing: octavo pin add TEXT, or --chat with --system TEXT")
    ttl = {} if options.ttl is None else {"ttl": options.ttl}
    return visit.ask(resolved.config, options, "POST", _PATH, {**visit.prefix(options), **ttl})


def _list(resolved: Resolved, options: argparse.Namespace) -> dict[str, Any]:
    return visit.ask(resolved.config, options, "GET", _PATH)


def _remove(resolved: Resolved, options: argparse.Namespace) -> dict[str, Any]:
    if len(options.text) != 1:
        raise visit.ServerRefused("give the id of one pin: octavo pin remove ID (`octavo pin list` has them)")
    return visit.ask(resolved.config, options, "DELETE", f"{_PATH}/{options.text[0]}")


_ACTIONS = {"add": _add, "list": _list, "remove": _remove}


def _as_text(answer: dict[str, Any]) -> str:
    if answer.get("deleted"):
        return f"{answer['id']} removed"
    if answer["object"] == "pin":
        return _line(answer)
    head = f"{_blocks(answer['blocks'])} pinned; quota {answer['quota_blocks']}"
    return "\n".join([*map(_line, answer["data"]), head])


def _line(pin: dict[str, Any]) -> str:
    whose = f", tenant {pin['tenant']}" if pin["tenant"] else ""
    return f"{pin['id']}: {pin['tokens']} tokens in {_blocks(pin['blocks'])}, for {pin['expires_in']:.0f} s{whose}"


def _blocks(count: int) -> str:
    return "1 block" if count == 1 else f"{count} blocks"
