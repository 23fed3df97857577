"""LedgerBackend: the oracle. No tensors; a KV cell stores what was written into it, and every lie about it is caught.

A cell holds a token, its position, and a checksum of all the tokens before it as its writer saw them, as real KV does.
A work reads its past through its block tables, cell by cell, in each KV group as far back as the group's window goes;
the next token, and the hidden state, are functions of the checksum that it read. So a wrong block, a stale or unwritten
cell, a lost copy, or KV of another prefix or group either raises LedgerError or changes what comes out.
"""

import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from octavo.core.plan import BlockCopy, HiddenSum, Sample, ScoredToken, StepPlan, StepResult, Work, WorkResult
from octavo.core.ports import Capacity
from octavo.core.types import NO_BLOCK, BlockId, TokenId
from octavo.models.windows import first_key

_MASK = 2**64 - 1


_CELL = struct.Struct("<?qqQq")
"""A cell as bytes: written or not, token, position, checksum, group."""
_SUM = struct.Struct("=3d")
"""Of hidden states: how many they are, and the halves of their checksums. Exact for two million tokens."""


class LedgerError(ValueError):
    """A plan that no backend could compute rightly: it says which request, position and block."""


class Cell(NamedTuple):
    """One token's KV: `checksum` is of all the tokens up to and including this one."""

    token: TokenId
    position: int
    checksum: int
    group: int = 0


def mix(state: int, value: int) -> int:
    """One step of a 64-bit checksum (the finaliser of splitmix64, over state and value)."""
    x = (state * 0x9E3779B97F4A7C15 + value + 0x632BE59BD9B4E019) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


class LedgerBackend:
    """Implements `core.ports.Backend` with a dictionary in place of a model.

    The distribution after a checksum is fixed: the token `alphabet` steps ahead of it, in a circle, by rank 1, 2, ...,
    with probability proportional to 2 ** -rank. A small `alphabet` makes equal prefixes, and so sharing, frequent.
    The hidden state is (1, low half of the checksum, high half): a sum of them says how many, and which.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        vocab_size: int,
        max_model_len: int,
        alphabet: int | None = None,
        windows: tuple[int | None, ...] = (None,),
    ) -> None:
        self._capacity = Capacity(
            num_blocks=num_blocks,
            block_size=block_size,
            vocab_size=vocab_size,
            max_model_len=max_model_len,
            hidden_size=3,
        )
        self._alphabet = alphabet or vocab_size
        if not 1 <= self._alphabet <= vocab_size:
            raise ValueError(f"alphabet must be from 1 to vocab_size ({vocab_size}), got {alphabet}")
        self._windows = windows
        self._remembers = any(window != 1 for window in windows)
        """Does anything but a token itself decide what follows it?"""
        self._cells: dict[tuple[BlockId, int], Cell] = {}

    def capacity(self) -> Capacity:
        return self._capacity

    def execute(self, plan: StepPlan) -> StepResult:
        """Copies, then writes, then reads and draws. Raises LedgerError for a plan that breaks a law."""
        for copy in plan.copies:
            self._copy(copy)
        self._check_writes(plan.work)
        states = [self._write(work) for work in plan.work]
        results = [self._answer(work, after) for work, after in zip(plan.work, states, strict=True)]
        return StepResult(plan.step, tuple(results), {"execute": 0.0})

    @property
    def block_bytes(self) -> int:
        return _CELL.size * self._capacity.block_size

    def read_block(self, block: BlockId) -> memoryview:
        """The cells, one after the other; one that was never written is all zeros."""
        self._check_block(block)
        cells = [self._cells.get((block, slot)) for slot in range(self._capacity.block_size)]
        packed = [_CELL.pack(True, c.token, c.position, c.checksum, c.group) if c else bytes(_CELL.size) for c in cells]
        return memoryview(b"".join(packed))

    def write_block(self, block: BlockId, raw: memoryview) -> None:
        self._check_block(block)
        if len(raw) != self.block_bytes:
            raise LedgerError(f"a block has {self.block_bytes} bytes, not {len(raw)}")
        for slot, (written, *cell) in enumerate(_CELL.iter_unpack(raw)):
            if written:
                self._cells[block, slot] = Cell(*cell)
            else:
                self._cells.pop((block, slot), None)

    def close(self) -> None:
        self._cells.clear()

    # ---- memory ----

    def _places(self, work: Work, group: int, first: int, end: int) -> Iterator[tuple[BlockId, int]]:
        """Where the positions first .. end - 1 lie, one after the other."""
        size = self._capacity.block_size
        for logical in range(first // size, -(-end // size)):
            start = logical * size
            block = self._block(work, group, max(first, start))
            for slot in range(max(first - start, 0), min(end - start, size)):
                yield block, slot

    def _block(self, work: Work, group: int, position: int) -> BlockId:
        logical, table_len = position // self._capacity.block_size, len(work.block_ids) // len(self._windows)
        if logical >= table_len:
            raise LedgerError(f"{_name(work)}: position {position} is past its {table_len} blocks")
        block = work.block_ids[group * table_len + logical]
        if block == NO_BLOCK:
            raise LedgerError(f"{_name(work)}: position {position} of group {group} was given back")
        if not 0 <= block < self._capacity.num_blocks:
            raise LedgerError(f"{_name(work)}: block {block} is not in the pool of {self._capacity.num_blocks}")
        return block

    def _check_block(self, block: BlockId) -> None:
        if not 0 <= block < self._capacity.num_blocks:
            raise LedgerError(f"block {block} is not in the pool of {self._capacity.num_blocks}")

    def _first_read(self, work: Work, group: int) -> int:
        """The first position that the work's first token attends to."""
        return first_key(self._windows[group], work.start)

    def _copy(self, copy: BlockCopy) -> None:
        if copy.source == copy.target:
            raise LedgerError(f"block {copy.source} is copied to itself")
        for slot in range(self._capacity.block_size):
            cell = self._cells.get((copy.source, slot))
            if cell is None:
                self._cells.pop((copy.target, slot), None)
            else:
                self._cells[copy.target, slot] = cell

    def _check_writes(self, works: Iterable[Work]) -> None:
        """No cell is written twice in a step, or written by one work and read by another."""
        writers: dict[tuple[BlockId, int], Work] = {}
        groups = range(len(self._windows))
        for work, group in product(works, groups):
            for place in self._places(work, group, work.start, work.start + len(work.tokens)):
                if place in writers:
                    raise LedgerError(f"{_name(work)} and {_name(writers[place])} write the same cell: {place}")
                writers[place] = work
        for work, group in product(works, groups):
            for place in self._places(work, group, self._first_read(work, group), work.start):
                if place in writers:
                    raise LedgerError(f"{_name(work)} reads from a cell that this step writes: {place}")

    def _write(self, work: Work) -> list[int]:
        """Reads the past, writes the tokens; returns the checksum after each of them."""
        if not work.tokens or len(work.block_ids) % len(self._windows):
            raise LedgerError(f"{_name(work)} has no tokens, or tables of different lengths")
        state = self._read(work)
        states: list[int] = []
        for position, token in enumerate(work.tokens, work.start):
            if not 0 <= token < self._capacity.vocab_size or position >= self._capacity.max_model_len:
                raise LedgerError(f"{_name(work)}: token {token} at position {position} is out of range")
            state = mix(state if self._remembers else 0, token)
            states.append(state)
        end = work.start + len(work.tokens)
        for group in range(len(self._windows)):
            places = self._places(work, group, work.start, end)
            for position, token, state, place in zip(range(work.start, end), work.tokens, states, places, strict=True):
                self._cells[place] = Cell(token, position, state, group)
        return states

    def _read(self, work: Work) -> int:
        """The checksum of the past, which all groups that read any of it must agree on."""
        read = [self._read_group(work, group) for group in range(len(self._windows))]
        states = {state for state in read if state is not None}
        if len(states) > 1:
            raise LedgerError(f"{_name(work)} reads a different past in each group before {work.start}")
        return states.pop() if states else 0

    def _read_group(self, work: Work, group: int) -> int | None:
        """The checksum before the work's first token; None where its window reaches no further back than itself."""
        state: int | None = 0 if self._windows[group] != 1 and work.start == 0 else None
        first = self._first_read(work, group)
        for position, place in enumerate(self._places(work, group, first, work.start), first):
            cell = self._cells.get(place)
            if cell is None:
                raise LedgerError(f"{_name(work)} reads position {position} from block {place[0]}, never written")
            before = 0 if position == 0 else state
            due = cell.checksum if before is None else mix(before, cell.token)
            if (cell.position, cell.checksum, cell.group) != (position, due, group):
                raise LedgerError(
                    f"{_name(work)} reads position {position} from block {place[0]}: another's KV, {cell}"
                )
            state = cell.checksum
        return state

    # ---- tokens ----

    def _answer(self, work: Work, states: list[int]) -> WorkResult:
        alternatives = work.num_target_alternatives
        scored = [self._score(states[i], token, alternatives) for i, token in enumerate(work.targets)]
        sampled: list[ScoredToken] = []
        for number, sample in enumerate(work.samples):
            state = states[work.sample_offset(number)]
            token = self._draw(state, sample)
            if token is None:
                error = "no token may be drawn: all are banned"
                return WorkResult(work.request_id, work.choice, error=error, code="nothing_allowed")
            wanted = sample.params.logprobs
            sampled.append(ScoredToken(token) if wanted is None else self._score(state, token, wanted))
        total = None if work.hidden_sum is None else _added(work, work.hidden_sum, states)
        return WorkResult(work.request_id, work.choice, tuple(sampled), tuple(scored), hidden_sum=total)

    def _draw(self, state: int, sample: Sample) -> TokenId | None:
        """The best token that may be drawn; with a temperature, one given by seed, choice and index too."""
        params = sample.params
        for token in sample.generated:
            state = mix(state, token)
        for token in sample.prompt:
            state = mix(state, token)
        if not params.greedy:
            for value in (sample.seed, sample.choice, sample.index):
                state = mix(state, value)
        allowed = self._allowed(sample)
        if allowed is not None and params.greedy:
            order = iter(sorted(allowed, key=lambda token: self._rank(state, token)))
        else:
            circle = range(self._alphabet) if allowed is None else allowed
            order = (circle[(state + i) % len(circle)] for i in range(len(circle)))
        return next((token for token in order if token not in sample.banned), None)

    def _allowed(self, sample: Sample) -> Sequence[TokenId] | None:
        """What lists and masks leave; None where there are none."""
        allowed, mask = sample.params.allowed_token_ids, sample.mask
        if mask is None:
            return allowed
        tokens = range(self._capacity.vocab_size) if allowed is None else allowed
        return [token for token in tokens if mask[token >> 3] >> (token & 7) & 1]

    def _rank(self, state: int, token: TokenId) -> int:
        """1 for the most likely token. Those outside the alphabet come last."""
        if token >= self._alphabet:
            return token + 1
        return (token - state) % self._alphabet + 1

    def _score(self, state: int, token: TokenId, num_alternatives: int) -> ScoredToken:
        order = [(state + i) % self._alphabet for i in range(min(num_alternatives, self._alphabet))]
        alternatives = tuple((other, self._logprob(self._rank(state, other))) for other in order)
        rank = self._rank(state, token)
        return ScoredToken(token, self._logprob(rank), rank, alternatives)

    def _logprob(self, rank: int) -> float:
        return -rank * math.log(2) - math.log1p(-(2.0**-self._capacity.vocab_size))


def _added(work: Work, asked: HiddenSum, states: list[int]) -> bytes:
    if not 0 <= asked.first < len(states):
        raise LedgerError(f"{_name(work)} adds hidden states from {asked.first} on, of {len(states)} tokens")
    count, low, high = _SUM.unpack(asked.total) if asked.total else (0.0, 0.0, 0.0)
    for state in states[asked.first :]:
        count, low, high = count + 1, low + (state & 0xFFFFFFFF), high + (state >> 32)
    return _SUM.pack(count, low, high)


def _name(work: Work) -> str:
    return f"{work.request_id}/{work.choice}"
