"""Manners: how a client is told what goes wrong. The path that it asked for says which protocol it speaks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from octavo.server import shapes
from octavo.server.anthropic.errors import error_body
from octavo.server.anthropic.shapes import MessagesError
from octavo.server.openai.errors import ApiError


@dataclass(frozen=True, slots=True)
class Manner:
    """What the clients of one protocol expect beside answers."""

    error: Any
    """The shape of an error."""
    error_body: Callable[[ApiError, str], bytes]
    """An error, and the request's id -> what is answered."""
    id_header: str = "x-request-id"
    """Where its own clients look for the request's id."""


_OPENAI = Manner(shapes.Error, lambda error, _: error.body())
_ANTHROPIC = Manner(MessagesError, error_body, "request-id")
_ANTHROPIC_PATH = "/v1/messages"


def manner_of(path: str) -> Manner:
    """How to speak to whoever asks for `path`: as Anthropic below /v1/messages, as OpenAI everywhere else."""
    theirs = path == _ANTHROPIC_PATH or path.startswith(f"{_ANTHROPIC_PATH}/")
    return _ANTHROPIC if theirs else _OPENAI
