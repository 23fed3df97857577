"""`octavo chat`: a conversation in the terminal."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from octavo.config.sources import Resolved
from octavo.config.values import did_you_mean
from octavo.core.sampling import SamplingParams
from octavo.engine.outputs import GenerationError, RequestOutput
from octavo.models.catalog import names_of
from octavo.tools.partner import AnswerRefused, Message, Partner, open_partner, sampling_params
from octavo.tools.terminal import NotText, Show, check_text, note, write


@dataclass(slots=True)
class Conversation:
    """What was said so far, and what is said before all of it."""

    system: str = ""
    turns: list[Message] = field(default_factory=list)

    @property
    def messages(self) -> list[Message]:
        first: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.turns]

    def say(self, role: str, content: str) -> None:
        self.turns.append({"role": role, "content": content})


def main(resolved: Resolved, options: argparse.Namespace) -> int:
    params = sampling_params(options, temperature=0.7, top_p=0.95)
    check_text(options.system or "", "--system")
    conversation = Conversation(options.system or "")
    with open_partner(resolved.config) as (partner, facts):
        for line in facts.warnings:
            note(f"warning: {line}")
        if sys.stdin.isatty():
            name = names_of(resolved.config.model.model, resolved.config.model.served_model_name)[0]
            print(f"{name}, {facts.capacity.max_model_len:,} tokens of context. /help lists commands.")
        painter = markdown if sys.stdout.isatty() and not options.plain else plain
        talk(partner, conversation, params, painter)
    return 0


Painter = Callable[[], contextlib.AbstractContextManager[Show]]
"""Opens a place where one answer appears, piece by piece."""


def talk(partner: Partner, conversation: Conversation, params: SamplingParams, painter: Painter) -> None:
    """Reads lines and answers them until /exit or the end of the input."""
    for line in lines():
        if not readable(line):
            continue
        if line.startswith("/"):
            if obey(line, conversation):
                return
        elif line.strip():
            answer(partner, conversation, line, params, painter)


def readable(line: str) -> bool:
    """Is it text? Says so where it is not."""
    try:
        check_text(line, "this line")
    except NotText as error:
        note(str(error))
        return False
    return True


def answer(
    partner: Partner, conversation: Conversation, line: str, params: SamplingParams, painter: Painter
) -> RequestOutput | None:
    """One turn. A turn without an answer is taken back, so that the next one can be better."""
    conversation.say("user", line)
    try:
        with painter() as show:
            output = partner.answer(conversation.messages, params, show)
    except (AnswerRefused, GenerationError, KeyboardInterrupt) as error:
        conversation.turns.pop()
        note(f"{str(error) or 'interrupted'} (/clear begins anew)")
        return None
    choice = output.outputs[0]
    conversation.say("assistant", choice.text)
    if choice.finish_reason in _NOTES:
        print(_NOTES[choice.finish_reason], file=sys.stderr)
    return output


_NOTES = {"abort": "(stopped)", "length": "(cut off at --max-tokens or at the end of the context)"}


def lines() -> Iterator[str]:
    """What the user types, with editing and history on a terminal. Ctrl-C clears the line, Ctrl-D ends."""
    prompt = ">>> " if sys.stdin.isatty() else ""
    if prompt:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives input() line editing and history
    while True:
        try:
            yield input(prompt)
        except EOFError:
            return
        except KeyboardInterrupt:
            print("\n(/exit or Ctrl-D ends)")


def obey(line: str, conversation: Conversation) -> bool:
    """Does what a /command says. True where it says: end."""
    word, _, rest = line.partition(" ")
    command = COMMANDS.get(word)
    if command is None:
        print(f"unknown command {word}{did_you_mean(word, COMMANDS)}; /help lists them")
        return False
    return command.act(conversation, rest.strip())


@dataclass(frozen=True, slots=True)
class ChatCommand:
    help: str
    act: Callable[[Conversation, str], bool]
    """Told what stands behind the command; returns whether to end."""


def _help(_: Conversation, __: str) -> bool:
    print("\n".join(f"{word:16} {command.help}" for word, command in COMMANDS.items()))
    return False


def _clear(conversation: Conversation, _: str) -> bool:
    conversation.turns.clear()
    print("(the conversation begins anew)")
    return False


def _system(conversation: Conversation, text: str) -> bool:
    if text:
        conversation.system = text
        conversation.turns.clear()
    print(f"(system message: {conversation.system or 'none'})")
    return False


def _exit(_: Conversation, __: str) -> bool:
    return True


COMMANDS: Mapping[str, ChatCommand] = {
    "/help": ChatCommand("list the commands", _help),
    "/clear": ChatCommand("forget what was said; the system message stays", _clear),
    "/system": ChatCommand("show the system message; with a text: set it, and begin anew", _system),
    "/exit": ChatCommand("end (also Ctrl-D); Ctrl-C stops an answer", _exit),
}


@contextlib.contextmanager
def plain() -> Iterator[Show]:
    """The answer as it is."""
    yield write
    write("\n")


@contextlib.contextmanager
def markdown() -> Iterator[Show]:
    """The answer as Markdown, drawn again as it grows; whole once it is complete."""
    from rich.console import Console
    from rich.live import Live
    from rich.markdown import Markdown

    console, pieces = Console(), list[str]()
    with Live(console=console, transient=True, refresh_per_second=8, vertical_overflow="ellipsis") as live:

        def show(text: str) -> None:
            pieces.append(text)
            live.update(Markdown("".join(pieces)))

        yield show
    console.print(Markdown("".join(pieces)))
