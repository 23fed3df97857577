"""The `octavo` command: tables of commands and flags, and one place where errors become one line and an exit status.

Knows what each command is called and takes; what it does is in `octavo.tools`, loaded when it runs.
"""

import argparse
import errno
import importlib
import io
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from octavo.config import logs
from octavo.config.schema import Setting, settings
from octavo.config.sources import resolve
from octavo.config.values import did_you_mean, read_value

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
EXIT_STATUS = {
    OK: "done",
    FAILED: "something failed on the way, or `doctor` found something broken",
    USAGE: "a flag, a setting, a file or a name that cannot be used",
    INTERRUPTED: "interrupted with Ctrl-C",
}

MODEL = ("model",)
COMPUTE = ("model", "cache", "scheduler", "engine")
ALL = (*COMPUTE, "queue", "slo", "server", "limits", "observability")


@dataclass(frozen=True, slots=True)
class Argument:
    """What argparse is told about one argument that is no setting."""

    names: tuple[str, ...]
    about: Mapping[str, Any]

    @property
    def is_flag(self) -> bool:
        return self.names[0].startswith("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One subcommand. `run` names a function `(Resolved, argparse.Namespace) -> int` as `module:function`."""

    help: str
    run: str
    sections: tuple[str, ...] = ()
    """The parts of the configuration whose flags it takes."""
    without: frozenset[str] = frozenset()
    """Settings of these parts that are no flags of this command."""
    arguments: tuple[Argument, ...] = ()
    log_level: int = logging.WARNING
    needs_output: bool = True
    """Is it of no use where standard output is closed?"""
    hidden: bool = False

    def settings(self) -> dict[str, Setting]:
        """The settings that are flags of this command."""
        mine = (item for item in settings().values() if item.section in self.sections and item.option.flag)
        return {item.name: item for item in mine if item.name not in self.without}


def _argument(*names: str, **about: Any) -> Argument:
    return Argument(names, about)


_MODEL_ARGUMENT = _argument(
    "positional_model",
    metavar="MODEL",
    nargs="?",
    help="GGUF file, Hugging Face directory, hub id, or a name of the catalogue; default: the small built-in one",
)
_JSON = _argument("--json", action="store_true", help="print JSON for machines")
_SYSTEM = _argument("--system", metavar="TEXT", help="a system message to begin with")
_SAMPLING = (
    _argument("--temperature", type=float, help="0 is greedy; higher is more varied"),
    _argument("--top-p", type=float, help="keep the most likely tokens up to this share of probability"),
    _argument("--top-k", type=int, help="keep this many of the most likely tokens; 0 keeps all"),
    _argument("--min-p", type=float, help="keep tokens at least this likely, relative to the best one"),
    _argument("--presence-penalty", type=float, help="make tokens that were generated less likely"),
    _argument("--frequency-penalty", type=float, help="the same, for each time that they were"),
    _argument("--repetition-penalty", type=float, help="above 1: tokens of prompt and answer become less likely"),
    _argument("--max-tokens", type=int, help="end the answer after this many tokens"),
    _argument("--min-tokens", type=int, help="do not end it before this many"),
    _argument("--stop", action="append", metavar="TEXT", help="end the answer before this text; may be repeated"),
    _argument("--ignore-eos", action="store_true", help="go on after the model's own end"),
    _argument("--seed", type=int, help="the same seed gives the same answer"),
)
_VISIT = (
    _argument("--url", help="the server; default: where the configuration has it listen"),
    _argument("--key", "--api-key", metavar="KEY", help="the API key to send; default: the first of --api-key"),
    _JSON,
)
_PREFIX = (
    _argument("--chat", action="store_true", help="the text is what a user says, through the chat template"),
    _argument("--system", metavar="TEXT", help="with --chat: a system message before it"),
    _argument("--cache-salt", metavar="SALT", help="the salt of the requests that it is about"),
)
COMMANDS: dict[str, Command] = {
    "serve": Command(
        help="serve a model over HTTP",
        run="octavo.tools.serve:main",
        sections=ALL,
        arguments=(_MODEL_ARGUMENT,),
        log_level=logging.INFO,
        needs_output=False,
    ),
    "run": Command(
        help="answer one prompt, and end",
        run="octavo.tools.oneshot:main",
        sections=COMPUTE,
        without=frozenset({"seed", "served_model_name"}),
        arguments=(
            _argument("prompt", metavar="PROMPT", nargs="*", help="the prompt; what is piped in comes after it"),
            _SYSTEM,
            _argument("--raw", action="store_true", help="continue the text; no chat template"),
            *_SAMPLING,
            _JSON,
        ),
    ),
    "chat": Command(
        help="talk with a model in the terminal",
        run="octavo.tools.chat:main",
        sections=COMPUTE,
        without=frozenset({"seed", "served_model_name"}),
        arguments=(
            _MODEL_ARGUMENT,
            _SYSTEM,
            _argument("--plain", action="store_true", help="show answers as they are, not as Markdown"),
            *_SAMPLING,
        ),
    ),
    "pull": Command(
        help="download a model",
        run="octavo.tools.pull:main",
        arguments=(
            _argument("name", metavar="NAME", nargs="?", help="a name of the catalogue, or a hub id"),
            _argument("--list", action="store_true", help="list the catalogue"),
        ),
    ),
    "doctor": Command(
        help="check this machine, this installation and a model, or a running server",
        run="octavo.tools.doctor:main",
        sections=ALL,
        arguments=(
            _MODEL_ARGUMENT,
            _argument(
                "--cold-start",
                action="store_true",
                help="instead: start a server a few times, measure each stage, and print probes for Kubernetes",
            ),
            _argument(
                "--perplexity", metavar="FILE", help="instead: how well the model predicts this text, as configured"
            ),
            _argument("--baseline", action="store_true", help="with --perplexity: beside it, the same in float32"),
            _argument("--url", help="instead: ask the server at this address how it is"),
            _argument("--key", metavar="KEY", help="the API key to send to it; default: the first of --api-key"),
            _argument(
                "--production",
                action="store_true",
                help="the same, and a checklist for production; without --url: where the configuration has it listen",
            ),
            _argument("--expected-peak", type=int, metavar="N", help="with --production: requests at once"),
            _argument("--prompt-tokens", type=int, metavar="N", help="with --production: of a long prompt"),
            _argument(
                "--itl-target", type=float, metavar="MS", help="with --production: between tokens, for 99 of 100"
            ),
            _argument(
                "--startup-budget",
                type=float,
                metavar="SECONDS",
                help="with --production: what the startup probe allows, periodSeconds times failureThreshold",
            ),
            _JSON,
        ),
    ),
    "pin": Command(
        help="keep the beginning of prompts in the cache of a running server",
        run="octavo.tools.pins:main",
        arguments=(
            _argument("action", metavar="ACTION", choices=("add", "list", "remove"), help="add, list or remove"),
            _argument("text", metavar="TEXT", nargs="*", help="to add: the text; to remove: the id"),
            _argument("--ttl", type=float, metavar="SECONDS", help="how long it stays; default: an hour"),
            *_PREFIX,
            *_VISIT,
        ),
    ),
    "explain": Command(
        help="say what became of a request or prompt, and what a setting or an error means",
        run="octavo.tools.explain:main",
        arguments=(
            _argument(
                "subject",
                metavar="SUBJECT",
                choices=("request", "cache", "config", "error"),
                help="request ID, cache TEXT, config [KEY] (these ask a running server), or error CODE",
            ),
            _argument("text", metavar="TEXT", nargs="*", help="the id, the prompt, the setting, or the code"),
            *_PREFIX,
            *_VISIT,
        ),
    ),
    "top": Command(
        help="watch a running server: rates, latencies, queue, KV cache and requests",
        run="octavo.tools.top:main",
        arguments=(
            _argument("--interval", type=float, default=1.0, metavar="SECONDS", help="how often to look; default: 1"),
            _argument("--once", action="store_true", help="look once, print that, and end"),
            *_VISIT,
        ),
    ),
    "profile": Command(
        help="say where a step's time goes, beside what this machine could do",
        run="octavo.tools.profile:main",
        sections=COMPUTE,
        without=frozenset({"seed", "served_model_name"}),
        arguments=(
            _argument(
                "subject", metavar="SUBJECT", choices=("step",), help="step: the steps of prompts, and of decode"
            ),
            _MODEL_ARGUMENT,
            _argument("--batch", type=int, default=1, metavar="B", help="requests at once; default: 1"),
            _argument("--prompt-len", type=int, default=256, metavar="P", help="tokens of a prompt; default: 256"),
            _argument(
                "--context", type=int, metavar="N", help="tokens before the first decode step; default: the prompt's"
            ),
            _argument("--steps", type=int, default=32, metavar="K", help="decode steps; default: 32"),
            _argument("--trace", metavar="FILE", help="write a trace that Perfetto and Chrome open"),
            _JSON,
        ),
    ),
    "replay": Command(
        help="make the plans of a dump again, and say what differs first",
        run="octavo.tools.replay:main",
        arguments=(
            _argument("file", metavar="FILE", help="a dump: --crash-dump-dir has them"),
            _argument("--audit", action="store_true", help="check the laws of the allocator after each step"),
            _argument("--plans", type=int, default=0, metavar="N", help="print the last N plans as they were"),
            _JSON,
        ),
    ),
    "config": Command(
        help="print each setting, and where its value came from",
        run="octavo.tools.settings:main",
        sections=ALL,
        arguments=(_MODEL_ARGUMENT, _JSON),
    ),
    "engine": Command(
        help="an engine process, started by a server",
        run="octavo.tools.child:main",
        sections=("observability",),
        arguments=(_argument("--fd", type=int, required=True, help="the socket to the server"),),
        log_level=logging.INFO,
        needs_output=False,
        hidden=True,
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status. Nothing that a user did wrong gives a traceback."""
    words = list(sys.argv[1:] if argv is None else argv)
    _open_streams(needs_output=not words or words[0] not in COMMANDS or COMMANDS[words[0]].needs_output)
    try:
        return _flushed(words)
    except _refusals() as error:
        return _complain(f"cannot start: {error}", USAGE, words[0])
    except _expected() as error:
        return _complain(str(error), USAGE)
    except _failures() as error:
        return _complain(str(error), FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains again at exit
        return FAILED if error.errno == errno.EPIPE else _complain(f"cannot write: {error.strerror}", FAILED)


def _flushed(words: list[str]) -> int:
    try:
        return _dispatch(words)
    finally:
        sys.stdout.flush()


_CANNOT_WRITE = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
"""What is wrong with standard output where it takes no more."""


def _open_streams(*, needs_output: bool) -> None:
    """Makes the standard streams usable: a closed one reads as empty, or refuses what is written; none stops at a text.

    A closed one keeps its number, too: the next file to be opened would be the one that others write to.
    """
    output = os.O_RDONLY if needs_output else os.O_WRONLY
    for name, flags, mode in (("stdin", os.O_RDONLY, "r"), ("stdout", output, "w"), ("stderr", os.O_WRONLY, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode, closefd=False))
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


class UsageError(ValueError):
    """A command line that cannot be understood."""


_EXPECTED = {
    "octavo.cli": "UsageError",
    "octavo.config.schema": "ConfigError",
    "octavo.core.sampling": "ParameterError",
    "octavo.engine.memory": "MemoryPlanError",
    "octavo.loaders.errors": "LoadError",
    "octavo.models.fields": "ModelError",
    "octavo.server.lifecycle": "CannotListen",
    "octavo.text.chat": "TemplateError",
    "octavo.tools.explain": "NothingToExplain",
    "octavo.tools.partner": "AnswerRefused",
    "octavo.tools.perplexity": "NoText",
    "octavo.tools.profile": "NothingToProfile",
    "octavo.tools.replay": "NoReplay",
    "octavo.tools.terminal": "NotText",
}
"""What a user can cause. Looked up when something was raised: a module that is not loaded raised nothing."""
_REFUSALS = {"octavo.engine.client": "CannotStart"}
"""The same, where only an engine that loads can know it."""
_FAILURES = {
    "octavo.engine.client": "EngineDead",
    "octavo.engine.outputs": "GenerationError",
    "octavo.tools.cold_start": "DidNotStart",
    "octavo.tools.visit": "ServerRefused",
}


def _expected() -> tuple[type[BaseException], ...]:
    return _loaded(_EXPECTED)


def _refusals() -> tuple[type[BaseException], ...]:
    return _loaded(_REFUSALS)


def _failures() -> tuple[type[BaseException], ...]:
    return _loaded(_FAILURES)


def _loaded(names: Mapping[str, str]) -> tuple[type[BaseException], ...]:
    return tuple(getattr(sys.modules[module], name) for module, name in names.items() if module in sys.modules)


def _complain(message: str, status: int, command: str = "") -> int:
    logs.say(f"{f'octavo {command}'.rstrip()}: {' '.join(message.split())}", level=logging.CRITICAL)
    return status


def _dispatch(words: list[str]) -> int:
    first = words[0] if words else "--help"
    if first in ("-h", "--help", "help"):
        print(overview())
        return OK
    if first in ("-V", "--version"):
        from octavo import __version__

        print(f"octavo {__version__}")
        return OK
    if first not in COMMANDS:
        what = "flag" if first.startswith("-") else "command"
        raise UsageError(f"unknown {what} {first!r}{did_you_mean(first, _shown())}; `octavo --help` lists the commands")
    return _run(first, COMMANDS[first], words[1:])


def _shown() -> dict[str, Command]:
    return {name: command for name, command in COMMANDS.items() if not command.hidden}


def overview() -> str:
    """What `octavo --help` prints."""
    commands = [f"  octavo {name:8} {command.help}" for name, command in _shown().items()]
    statuses = [f"  {status:<6} {meaning}" for status, meaning in EXIT_STATUS.items()]
    head = "usage: octavo COMMAND [ARGUMENTS]   (`octavo COMMAND --help` lists them)"
    return "\n".join([head, "", *commands, "", "exit status:", *statuses, "", "octavo --version prints the version."])


def _run(name: str, command: Command, words: list[str]) -> int:
    parser = build_parser(name, command)
    options = parse(parser, normalise(words))
    resolved = resolve(_flags(command, options), file=getattr(options, "config_file", None))
    told = resolved.config.observability
    logs.begin(told.log_format, logs.LEVELS.get(told.log_level or "", command.log_level), name)
    module, function = command.run.split(":")
    return getattr(importlib.import_module(module), function)(resolved, options)


class _Parser(argparse.ArgumentParser):
    """Raises where argparse would print and exit."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; `{self.prog} --help` lists what there is")


def build_parser(name: str, command: Command) -> argparse.ArgumentParser:
    """The parser of one command: its own arguments, then a group of flags for each part of the configuration."""
    parser = _Parser(prog=f"octavo {name}", description=command.help, allow_abbrev=False)
    for argument in command.arguments:
        parser.add_argument(*argument.names, **argument.about)
    groups = {section: parser.add_argument_group(f"{section} settings") for section in command.sections}
    for setting in command.settings().values():
        flags = (setting.flag, *setting.option.aliases)
        groups[setting.section].add_argument(*flags, dest=setting.name, **_about(setting))
    if command.sections:
        parser.add_argument("--config", dest="config_file", metavar="FILE", help="YAML file with settings")
    return parser


def _about(setting: Setting) -> dict[str, Any]:
    """What argparse is told about a setting's flag. Values stay text: `octavo.config` reads them."""
    default = setting.option.none_means if setting.default is None else setting.default
    note = f" (default: {default})" if default not in ((), "") else ""
    about: dict[str, Any] = {"default": argparse.SUPPRESS, "help": (setting.option.help + note).replace("%", "%%")}
    if setting.kind is bool:
        return {**about, "action": argparse.BooleanOptionalAction}
    if setting.kind is tuple:
        about["help"] += "; several: repeat the flag, or separate them with commas"
        return {**about, "action": "append", "metavar": "TEXT"}
    choices = "{" + ",".join(setting.option.choices) + "}" if setting.option.choices else ""
    return {**about, "metavar": choices or setting.option.unit.upper() or {str: "TEXT"}.get(setting.kind, "N")}


def normalise(words: Sequence[str]) -> list[str]:
    """`--max_num_seqs` as `--max-num-seqs`, and a switch `--x=false` as `--no-x`. What follows `--` stays as it is."""
    end = list(words).index("--") if "--" in words else len(words)
    return [_normal(word) for word in words[:end]] + list(words[end:])


def _normal(word: str) -> str:
    if not word.startswith("--"):
        return word
    flag, equals, value = word.partition("=")
    flag = flag.replace("_", "-")
    setting = settings().get(flag[2:].replace("-", "_"))
    if equals and setting is not None and setting.kind is bool:
        return flag if read_value(setting, value, f"flag {flag}") else f"--no-{flag[2:]}"
    return flag + equals + value


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """The parsed words. Raises UsageError, with a suggestion for an unknown flag."""
    options, unknown = parser.parse_known_intermixed_args(words)  # texts and flags in any order
    if unknown:
        flag = unknown[0].partition("=")[0]
        known = [name for action in parser._actions for name in action.option_strings]
        what = "flag" if flag.startswith("-") else "argument"
        raise UsageError(
            f"unknown {what} {flag!r}{did_you_mean(flag, known)}; `{parser.prog} --help` lists what there is"
        )
    return options


def _flags(command: Command, options: argparse.Namespace) -> dict[str, Any]:
    """The settings among the parsed words, by name."""
    mine = command.settings()
    given = {name: _joined(mine[name], value) for name, value in vars(options).items() if name in mine}
    positional = getattr(options, "positional_model", None)
    if positional is None:
        return given
    if given.get("model", positional) != positional:
        raise UsageError(f"two models: {positional!r} and --model {given['model']!r}; give one of them")
    return {**given, "model": positional}


def _joined(setting: Setting, value: Any) -> Any:
    """What the occurrences of one flag add up to: each is a text, `a,b`, or a JSON list."""
    if not isinstance(value, list):
        return value
    return [item for text in cast(list[str], value) for item in read_value(setting, text, f"flag {setting.flag}")]


def reference() -> str:
    """docs/reference/command-line.md, made from the tables above; a test keeps it so."""
    head = ["# Command line\n\nGenerated from `octavo.cli`. Settings are in [configuration.md](configuration.md)."]
    statuses = [("status", "meaning"), *((str(status), meaning) for status, meaning in EXIT_STATUS.items())]
    commands = [block for name, command in _shown().items() for block in _blocks(name, command)]
    return "\n\n".join([*head, *commands, "## Exit status", _table(statuses)]) + "\n"


def _blocks(name: str, command: Command) -> list[str]:
    """What the reference says about one command: usage, what it does, its own flags, the settings that it takes."""
    places = [argument.about["metavar"] for argument in command.arguments if not argument.is_flag]
    rows = [(f"`{flag.names[0]}`", flag.about["help"]) for flag in command.arguments if flag.is_flag]
    blocks = [f"## `octavo {name} {' '.join(f'[{place}]' for place in places)} [FLAGS]`"]
    blocks.append(f"{command.help[0].upper()}{command.help[1:]}.")
    if rows:
        blocks.append(_table([("flag", "meaning"), *rows]))
    if command.sections:
        without = " and ".join(f"`{item}`" for item in sorted(command.without))
        blocks.append(f"Settings: {', '.join(command.sections)}{f'; without {without}' if without else ''}.")
    return blocks


def _table(rows: Sequence[tuple[str, str]]) -> str:
    lines = [f"| {left} | {right} |" for left, right in rows]
    return "\n".join([lines[0], "|---|---|", *lines[1:]])
