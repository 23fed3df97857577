"""Chunks of a stream as bytes. What does not change is encoded once; for a token only its text is."""

from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b"\n\n"
"""No event at all, which every client skips: empty lines stand between all events. A comment would do by the standard,
but clients that strip what one read brings, and take it for whole events, fail on it or lose what follows."""
_encode = msgspec.json.Encoder().encode


class ChunkWriter:
    """Writes the chunks of one stream: the same id, model, created and object in all of them."""

    def __init__(self, head: dict[str, Any], *, text_field: tuple[bytes, bytes], null_usage: bool) -> None:
        """`text_field`: what stands around the text within a choice. `null_usage`: chunks have `usage: null`."""
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        self._null_usage = null_usage
        self._before, after = text_field
        tail = b'],"usage":null}\n\n' if null_usage else b"]}\n\n"
        self._after = after + b',"logprobs":null,"finish_reason":null}' + tail
        self._opened: dict[int, bytes] = {}

    def text(self, index: int, text: str) -> bytes:
        """A chunk with nothing but text: nearly all of them."""
        opened = self._opened.get(index)
        if opened is None:
            opened = self._opened[index] = b'%b{"index":%d,%b' % (self._head, index, self._before)
        return opened + one_line(_encode(text)) + self._after

    def choice(self, choice: dict[str, Any], more: dict[str, Any]) -> bytes:
        """A chunk with one choice and fields beside it."""
        if self._null_usage:
            more = {"usage": None, **more}
        rest = b"]," + _encode(more)[1:] if more else b"]}"
        return self._head + one_line(_encode(choice)) + rest + b"\n\n"

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The last chunk, where it was asked for."""
        return self._head + b'],"usage":' + _encode(usage) + b"}\n\n"


def one_line(data: bytes) -> bytes:
    """JSON in which nothing ends a line: some clients cut at what Unicode, not the protocol, calls a line's end."""
    if data.isascii():
        return data
    for raw, escaped in _LINE_ENDS:
        data = data.replace(raw, escaped)
    return data


_LINE_ENDS = tuple((end.encode(), b"\\u%04x" % ord(end)) for end in "\x85\u2028\u2029")


def error_event(body: bytes) -> bytes:
    """An error in the middle of a stream: the same object as without one. Nothing follows it."""
    return b"data: " + one_line(body) + b"\n\n"


def named_event(name: str, data: bytes) -> bytes:
    """An event of a protocol that names them."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), one_line(data))
