"""Renames: what another protocol calls the fields of a chat, for errors that come from where all are chats."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from octavo.server.openai.errors import ApiError

Renaming = tuple[str, str | Callable[[re.Match[str]], str]]
"""A regular expression for (part of) a path, and what it is called instead."""


@dataclass(frozen=True, slots=True)
class Renames:
    """Names of whole fields, and patterns of paths, which are renamed where a message speaks of them, too."""

    fields: Mapping[str, str]
    paths: tuple[Renaming, ...]

    def error(self, error: ApiError) -> ApiError:
        """The same error, in the words of the other protocol."""
        param, message = error.param, error.message
        if param is not None and param in self.fields:
            message = re.sub(rf"\b{re.escape(param)}\b", self.fields[param], message, count=1)
            param = self.fields[param]
        for pattern, name in self.paths:
            message = re.sub(pattern, name, message)
            param = None if param is None else re.sub(pattern, name, param)
        return ApiError(error.status, message, kind=error.kind, param=param, code=error.code, headers=error.headers)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Errors leave this block renamed."""
        try:
            yield
        except ApiError as error:
            raise self.error(error) from None
