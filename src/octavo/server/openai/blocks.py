"""Blocks: an answer as the texts and calls that it is made of, one after the other, as some protocols show it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from octavo.core.plan import ScoredToken
from octavo.server.openai.answer import Delta
from octavo.server.openai.calling import Calling, CallReader
from octavo.server.openai.respond import Gathered
from octavo.text.calls.reading import Call


@dataclass(slots=True, eq=False)
class Block:
    """A text; or a call of a function, whose text is the arguments."""

    index: int
    name: str | None = None
    """Of the function; None: it is text."""
    id: str = ""
    """Of the call."""
    pieces: list[str] = field(default_factory=list[str])
    spelled: list[ScoredToken] = field(default_factory=list[ScoredToken])
    """With logprobs: the tokens that spell the text."""
    status: Literal["in_progress", "completed", "incomplete"] = "in_progress"
    """Incomplete is what the end of the answer has cut."""

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Opened(NamedTuple):
    block: Block


class Added(NamedTuple):
    block: Block
    text: str
    spelled: Sequence[ScoredToken] = ()


class Closed(NamedTuple):
    block: Block


Change = Opened | Added | Closed


class Blocks:
    """The blocks of one choice, while it comes. How its text is cut into deltas changes nothing about them.

    There is always one at the end: an answer that says nothing is an empty text.
    """

    def __init__(self, calling: Calling | None) -> None:
        """`calling`: how the answer may call functions; None: it is text."""
        self._calling = calling
        self._reader = None if calling is None else CallReader(calling)
        self.all: list[Block] = []
        self.finish: str | None = None
        self.stop: str | int | None = None

    @property
    def called(self) -> bool:
        """Does it call a function, and is the last call complete?"""
        return self._reader is not None and self._reader.called

    def take_whole(self, choice: Gathered) -> None:
        """All of the answer at once."""
        self.take(Delta(0, "".join(choice.text), choice.finish, choice.stop, choice.spelled))

    def take(self, delta: Delta) -> list[Change]:
        """What a delta changes about the blocks, in order."""
        changes: list[Change] = []
        for part in self._parts(delta):
            if isinstance(part, Call):
                self._call(part, changes)
            else:
                self._say(part, delta.spelled, changes)
        if delta.finish is not None:
            self._end(delta, changes)
        return changes

    def _parts(self, delta: Delta) -> Sequence[str | Call]:
        if self._reader is not None:
            return self._reader.read(delta.text, delta.finish)
        return [delta.text] if delta.text or delta.spelled else []

    def _call(self, call: Call, changes: list[Change]) -> None:
        if call.name is not None:
            assert self._calling is not None
            self._open(Block(len(self.all), call.name, self._calling.new_id()), changes)
        if call.arguments:
            self._add(call.arguments, (), changes)

    def _say(self, text: str, spelled: Sequence[ScoredToken], changes: list[Change]) -> None:
        if not self.all or self.all[-1].name is not None:
            self._open(Block(len(self.all)), changes)
        self._add(text, spelled, changes)

    def _add(self, text: str, spelled: Sequence[ScoredToken], changes: list[Change]) -> None:
        block = self.all[-1]
        block.pieces.append(text)
        block.spelled += spelled
        changes.append(Added(block, text, spelled))

    def _open(self, block: Block, changes: list[Change]) -> None:
        if self.all:
            self._close("completed", changes)
        self.all.append(block)
        changes.append(Opened(block))

    def _close(self, status: Literal["completed", "incomplete"], changes: list[Change]) -> None:
        self.all[-1].status = status
        changes.append(Closed(self.all[-1]))

    def _end(self, delta: Delta, changes: list[Change]) -> None:
        self.finish, self.stop = delta.finish, delta.stop
        if not self.all:
            self._open(Block(0), changes)
        is_text = self.all[-1].name is None
        whole = delta.finish != "length" if is_text else self.called
        self._close("completed" if whole else "incomplete", changes)
