"""Seeding: what the cache must have held before a record begins, known from who hit it. Pure.

A record that lost its beginning starts where nothing was live, with a cache of which nobody knows the content. But a
prompt that was found in it up to token 40 says what 40 of its tokens are. So a fresh scheduler computes those first,
and before them as many blocks of nothing as were cached beside them.
"""

from collections.abc import Iterator, Sequence

from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.core.types import Limits, TokenId
from octavo.engine import dump

NOWHERE = b"nowhere"
"""The namespace of blocks whose content does not matter."""
_ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


class _Text:
    """A sequence of tokens, and a key for each of its blocks and all before it."""

    def __init__(self, space: bytes, tokens: Sequence[TokenId], size: int) -> None:
        self.space = space
        self.tokens = list(tokens)
        self._size = size
        self._keys: list[int] = []

    def keys(self, end: int) -> list[int]:
        """Of the full blocks up to `end`."""
        for at in range(len(self._keys) * self._size, end // self._size * self._size, self._size):
            before = self._keys[-1] if self._keys else hash(self.space)
            self._keys.append(hash((before, *self.tokens[at : at + self._size])))
        return self._keys[: end // self._size]


def seeds(record: dump.Confided) -> list[Request]:
    """Requests that fill the cache as it was: first what nobody in the record hits, then what somebody does."""
    first = record.entries[0] if record.entries else None
    if not isinstance(first, dump.Quiet) or not record.limits.enable_prefix_caching:
        return []
    size = record.limits.block_size
    found = list(_found(record))
    num_seeded = len({key for text in found for key in text.keys(len(text.tokens))})
    idle = _idle(record.limits, first.num_cached - num_seeded)
    return [
        Request(
            request_id=f"seed-{number}",
            prompt=(*text.tokens[: (record.limits.max_model_len - 2) // size * size], 0),
            params=_ONE_TOKEN,
            namespace=text.space,
        )
        for number, text in enumerate([*idle, *found])
    ]


def _found(record: dump.Confided) -> Iterator[_Text]:
    """Beginnings that were hit, and that nothing in the record had computed by then."""
    size, filler = record.limits.block_size, record.limits.vocab_size - 1
    past = _Past(size)
    rows: Sequence[tuple[int, ...]] = ()
    for entry in record.entries:
        if isinstance(entry, dump.Submitted):
            past.prompts[entry.number] = entry.request
        elif isinstance(entry, dump.Planned):
            rows = entry.rows or ()
            for number, choice, start, *_ in rows:
                is_new = number not in past.drawn
                text = past.text(number, choice)
                if is_new and start and (seed := _missing(text, start, past.computed, size, filler)) is not None:
                    past.computed.update(seed.keys(len(seed.tokens)))
                    yield seed
        elif isinstance(entry, dump.Committed):
            broken = {each.place for each in entry.errors}
            for place, (row, sampled) in enumerate(zip(rows, entry.sampled, strict=False)):
                if place not in broken:
                    past.note(row, sampled)


class _Past:
    """What was computed so far, as far as a record tells."""

    def __init__(self, size: int) -> None:
        self.prompts: dict[int, Request] = {}
        self.computed: set[int] = set()
        self.drawn: dict[int, list[TokenId]] = {}
        """Requests that have started -> the first token of each choice, once the prompt is computed."""
        self._texts: dict[tuple[int, int], _Text] = {}
        self._size = size

    def text(self, number: int, choice: int) -> _Text:
        """A choice that was not there before continues the prompt, with the token that was drawn for it."""
        drawn = self.drawn.setdefault(number, [])
        if (number, choice) not in self._texts:
            request = self.prompts[number]
            tokens = [*request.prompt, *drawn[choice : choice + 1]]
            self._texts[number, choice] = _Text(request.namespace, tokens, self._size)
        return self._texts[number, choice]

    def note(self, row: tuple[int, ...], sampled: Sequence[TokenId]) -> None:
        number, choice, start, count, *_ = row
        text = self.text(number, choice)
        if (start + count) // self._size > start // self._size:
            self.computed.update(text.keys(start + count))
        if sampled and not self.drawn[number]:
            self.drawn[number] = list(sampled)
        text.tokens += sampled[:1]


def _missing(text: _Text, start: int, computed: set[int], size: int, filler: TokenId) -> _Text | None:
    """What was hit of `text` up to `start`, in full blocks, where it is not known to have been computed.

    Where the hit ends within a block, that one goes on in another way; or, at the last token, in the same one.
    """
    length = len(text.tokens)
    end = length if start == length - 1 and length % size == 0 else start
    keys = text.keys(end)
    if end % size == 0 and keys and keys[-1] in computed:
        return None
    full = -(-end // size) * size
    return _Text(text.space, [*text.tokens[:end], *[filler] * (full - end)], size)


def _idle(limits: Limits, num_blocks: int) -> Iterator[_Text]:
    """So many blocks that nobody will hit."""
    most = max(1, (limits.max_model_len - 2) // limits.block_size)
    for number, at in enumerate(range(0, num_blocks, most)):
        count = min(most, num_blocks - at) * limits.block_size
        yield _Text(NOWHERE, [number % limits.vocab_size] * count, limits.block_size)
