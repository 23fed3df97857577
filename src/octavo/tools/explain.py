"""`octavo explain cache`: what would a prompt find in the prefix cache of a running server, and why no more?"""

import argparse
from typing import Any

from octavo.config.sources import Resolved
from octavo.tools import visit
from octavo.tools.terminal import to_json, write


def main(resolved: Resolved, options: argparse.Namespace) -> int:
    """Prints the answer, for people or as JSON. Nothing is computed, and the cache stays as it is."""
    answer = visit.ask(resolved.config, options, "POST", "/octavo/v1/explain", visit.prefix(options))
    write((to_json(answer) if options.json else as_text(answer)) + "\n")
    return 0


def as_text(answer: dict[str, Any]) -> str:
    """A few lines; texts as JSON strings, so that spaces and line ends can be seen."""
    cached, total = answer["cached_tokens"], answer["prompt_tokens"]
    lines = [f"{cached} of {total} tokens are cached, {answer['computed_tokens']} would be computed"]
    miss = answer["miss"]
    if miss is None:
        return lines[0]
    ago = "" if miss["evicted_s"] is None else f", {miss['evicted_s']:.1f} s ago"
    lines.append(f"from token {miss['at']} on: {miss['reason']}: {miss['message']}{ago}")
    lines.append(f"  after    {to_json(miss['before'])}")
    lines.append(f"  prompt   {_side(miss['prompt'])}")
    if miss["cached"] is not None:
        lines.append(f"  cached   {_side(miss['cached'])}")
    return "\n".join(lines)


def _side(side: dict[str, Any]) -> str:
    return " ".join(map(to_json, side["tokens"]))
