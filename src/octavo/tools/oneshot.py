"""`octavo run`: one prompt, one answer, streamed to the terminal."""

import argparse
import os
import stat
import sys
from typing import TextIO

from octavo.config.sources import DEFAULT, Resolved
from octavo.engine.outputs import RequestOutput
from octavo.loaders.hub import local_path
from octavo.models.catalog import find_model, names_of
from octavo.tools.partner import AnswerRefused, Message, open_partner, sampling_params
from octavo.tools.terminal import check_text, ignore, note, to_json, write

INTERRUPTED = 130


def main(resolved: Resolved, options: argparse.Namespace) -> int:
    """The answer goes to standard output; what a person should know besides, to standard error."""
    if resolved.origins["model"] == DEFAULT:
        check_no_model(options.prompt)
    prompt = full_prompt(options.prompt, sys.stdin)
    if not prompt.strip():
        raise AnswerRefused('there is no prompt: octavo run "PROMPT", or pipe one in')
    check_text(prompt, "the prompt")
    check_text(options.system or "", "--system")
    params = sampling_params(options, temperature=0.0)
    show = ignore if options.json else write
    with open_partner(resolved.config) as (partner, facts):
        for line in facts.warnings:
            note(f"warning: {line}")
        if options.raw:
            output = partner.complete(prompt, params, show)
        else:
            output = partner.answer(conversation(prompt, options.system), params, show)
    name = names_of(resolved.config.model.model, resolved.config.model.served_model_name)[0]
    _finish(output, name, as_json=options.json)
    return INTERRUPTED if output.outputs[0].finish_reason == "abort" else 0


def check_no_model(words: list[str]) -> None:
    """Raises AnswerRefused where the first of several words looks like the model that other commands take there."""
    if len(words) > 1 and (find_model(words[0]) is not None or local_path(words[0]) is not None):
        raise AnswerRefused(
            f"{words[0]!r} is a model or a file, and would be a word of the prompt here: "
            f"give a model with --model {words[0]}, or put the prompt in quotes"
        )


def full_prompt(words: list[str], stdin: TextIO) -> str:
    """The words of the command line, then what was piped in."""
    parts = [" ".join(words), stdin.read() if piped(stdin) else ""]
    return "\n\n".join(part for part in parts if part)


def piped(stdin: TextIO) -> bool:
    """Is there a pipe or a file to read? A terminal, /dev/null and a closed input are none."""
    try:
        mode = os.fstat(stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def conversation(prompt: str, system: str | None) -> list[Message]:
    first: list[Message] = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": prompt}]


def _finish(output: RequestOutput, name: str, *, as_json: bool) -> None:
    choice = output.outputs[0]
    if as_json:
        write(summary(output, name) + "\n")
        return
    if not choice.text.endswith("\n"):
        write("\n")
    if sys.stderr.isatty():
        note(speed(output))
    if choice.finish_reason == "length":
        note(f"cut off after {len(choice.token_ids)} tokens; --max-tokens N allows more")


def speed(output: RequestOutput) -> str:
    """`37 + 8 tokens, the first after 0.05 s, then 120.3 tokens/s`: of the prompt and the answer."""
    count, timing = len(output.outputs[0].token_ids), output.timing
    first, rate = timing.to_first_token_s, timing.tokens_per_s(count)
    parts = [f"{len(output.prompt_token_ids)} + {count} tokens"]
    parts += [] if first is None else [f"the first after {first:.2f} s"]
    parts += [] if rate is None else [f"then {rate:.1f} tokens/s"]
    return ", ".join(parts)


def summary(output: RequestOutput, name: str) -> str:
    """The answer as JSON, with the names of OpenAI's `usage`."""
    choice = output.outputs[0]
    usage = {
        "prompt_tokens": len(output.prompt_token_ids),
        "completion_tokens": len(choice.token_ids),
        "cached_tokens": output.num_cached_tokens,
    }
    timing = {
        "time_to_first_token_s": output.timing.to_first_token_s,
        "tokens_per_s": output.timing.tokens_per_s(len(choice.token_ids)),
    }
    answer = {
        "model": name,
        "text": choice.text,
        "finish_reason": choice.finish_reason,
        "usage": usage,
        "timing": timing,
    }
    return to_json(answer)
