"""A record is enough to make the same plans again, and has nothing in it that was said."""

import random
from array import array
from base64 import b64encode
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.backends.ledger import LedgerBackend
from octavo.core.pins import PinWish
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.core.throttle import Throttle
from octavo.core.types import Limits, Speculation
from octavo.engine import dump, recorder
from octavo.engine.answers import answer
from octavo.engine.asks import AddPin, Ask, ListPins, RemovePin, ResetPrefixCache
from octavo.engine.confide import confided
from octavo.engine.disguise import by_beginning, by_rank
from octavo.engine.recorder import Record, RecordedScheduler
from octavo.engine.replaying import replay
from tests.core.words import one_of, word_guide

LIMITS = Limits(
    num_blocks=24,
    block_size=4,
    vocab_size=16,
    max_model_len=64,
    max_num_seqs=4,
    max_num_batched_tokens=24,
    max_num_queued_reqs=6,
    eos_token_ids=(3,),
)


class Life:
    """An engine's life, driven by chance: everything that a scheduler may be told."""

    def __init__(self, limits: Limits, seed: int, most_bytes: int = 1 << 20, *, asks: bool = True) -> None:
        self.asks = asks
        self.random = random.Random(seed)
        self.scheduler = RecordedScheduler(limits, record=Record(most_bytes))
        self.ledger = LedgerBackend(
            num_blocks=limits.num_blocks,
            block_size=limits.block_size,
            vocab_size=limits.vocab_size,
            max_model_len=limits.max_model_len,
        )
        self.now = 0.0
        self.count = 0

    def tick(self) -> float:
        self.now += self.random.random()
        return self.now

    def live(self, moves: int, **shape: bool) -> None:
        for _ in range(moves):
            if self.random.random() < 0.4:
                self.submit(**shape)
            elif self.random.random() < 0.1 and self.scheduler.roster.requests:
                name = self.random.choice(list(self.scheduler.roster.requests))
                self.scheduler.cancel(name, self.tick(), self.random.choice([None, 0, 1]))
            elif self.asks and self.random.random() < 0.15:
                self.ask()
            elif self.random.random() < 0.15:
                self.scheduler.throttle(Throttle(self.random.randint(1, 24), self.random.randint(1, 4)))
            for choice in tuple(self.scheduler.roster.held):
                self.release(choice.request_id)
            if self.scheduler.has_work:
                self.step()

    def submit(self, *, beams: bool = False, forms: bool = False) -> None:
        self.count += 1
        shared = [self.random.choice([1, 2, 5, 9])] * self.random.randrange(14)
        tail = [self.random.randrange(17) for _ in range(1 + self.random.randrange(12))]  # 16 is refused
        width = self.random.choice([1, 1, 2])
        kinds = {"use_beam_search": True, "n": 2} if beams and width > 1 else {"n": width}
        form = {"structured_outputs": one_of("45", "459", "46")} if forms and self.random.random() < 0.5 else {}
        params = SamplingParams(
            max_tokens=1 + self.random.randrange(9), stop_token_ids=(self.random.randrange(16),), **kinds, **form
        )
        self.scheduler.submit(
            Request(
                request_id=f"r{self.count}",
                prompt=(*shared, *tail),
                params=params,
                namespace=self.random.choice([b"", b"secret-space"]),
                tenant=self.random.choice(["", "secret-tenant"]),
                arrival_s=self.now,
            ),
            self.tick(),
        )

    def release(self, name: str) -> None:
        if self.random.random() < 0.2:
            self.scheduler.give_up(name, "too large", self.tick())
        else:
            self.scheduler.guide(name, word_guide(one_of("45", "459", "46"), 16), self.tick())

    def ask(self) -> None:
        pin = f"p{self.random.randrange(3)}"
        wish = PinWish(pin, "secret-tenant", b"", (1,) * 8, self.random.choice([1.0, 50.0]), 4)
        asks: list[Ask] = [AddPin(wish), RemovePin(pin, None), ListPins(None), ResetPrefixCache()]
        ask, now = self.random.choice(asks), self.tick()
        self.scheduler.asked(ask, now)
        answer(self.scheduler, ask, now)

    def step(self) -> None:
        plan = self.scheduler.plan(self.tick())
        if not plan.work:
            self.scheduler.stalled(self.tick())
        elif self.random.random() < 0.05:
            self.scheduler.fail(plan, "the step failed", self.tick())
        else:
            result = self.ledger.execute(plan)
            if self.random.random() < 0.05:
                first, *rest = result.results
                result = replace(result, results=(first._replace(sampled=(), scored=(), error="nan"), *rest))
            self.scheduler.commit(plan, result, self.tick())

    def record(self) -> dump.Confided:
        return confided(self.scheduler.record.entries(), self.scheduler.record.num_lost, self.scheduler.limits)


def num_plans(record: dump.Confided) -> int:
    return sum(isinstance(entry, dump.Planned) for entry in record.entries)


@given(st.integers(0, 10**6), st.sampled_from(["fcfs", "fair"]), st.sampled_from(["v1", "v2"]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_record_that_goes_back_to_the_start_makes_every_plan_again(
    seed: int, policy: str, manager: str, forms: bool
) -> None:
    life = Life(replace(LIMITS, scheduling_policy=policy, block_manager=manager), seed)
    life.live(60, forms=forms)
    record = through_a_file(life.record())
    found = replay(record, audits=True)
    assert (found.difference, found.raised, found.violations, found.left_out) == (None, None, [], None)
    assert found.num_plans == num_plans(record) > 0 and record.tokens == "by_beginning"


@given(st.integers(0, 10**6), st.booleans())
@settings(max_examples=30, deadline=None)
def test_guesses_and_beams_are_replayed_with_ranks(seed: int, beams: bool) -> None:
    speculation = None if beams else Speculation(num_speculative_tokens=3, prompt_lookup_min=1)
    life = Life(replace(LIMITS, speculation=speculation), seed)
    life.live(40, beams=beams)
    record = through_a_file(life.record())
    found = replay(record, audits=True)
    assert (found.difference, found.raised, found.violations) == (None, None, [])
    assert found.num_plans == num_plans(record)


def through_a_file(record: dump.Confided) -> dump.Confided:
    return msgspec.json.decode(msgspec.json.encode(record), type=dump.Confided)


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_nothing_that_was_said_is_in_it(seed: int) -> None:
    """Records that differ in their words alone are told alike."""
    life = Life(LIMITS, seed)
    life.live(20)
    entries = [entry for entry in life.scheduler.record.entries() if not out_of_range(entry)]
    told = msgspec.json.encode(confided(entries, 0, LIMITS))
    assert b"secret-tenant" not in told and b64encode(b"secret-space") not in told
    other = replace(LIMITS, vocab_size=640, eos_token_ids=(other_word(3),))
    assert told == msgspec.json.encode(confided([in_other_words(entry) for entry in entries], 0, other)).replace(
        b'"vocab_size":128', b'"vocab_size":16'
    )


def out_of_range(entry: recorder.Entry) -> bool:
    return isinstance(entry, recorder.Submitted) and max(entry.request.prompt) > 15


def other_word(token: int) -> int:
    return token * 37 + 5


def in_other_words(entry: recorder.Entry) -> recorder.Entry:
    if isinstance(entry, recorder.Submitted):
        params = entry.request.params
        stops = tuple(map(other_word, params.stop_token_ids))
        prompt = tuple(map(other_word, entry.request.prompt))
        return replace(
            entry, request=replace(entry.request, prompt=prompt, params=replace(params, stop_token_ids=stops))
        )
    if isinstance(entry, recorder.Asked) and isinstance(entry.ask, AddPin):
        wish = entry.ask.wish
        return replace(entry, ask=AddPin(replace(wish, tokens=tuple(map(other_word, wish.tokens)))))
    if isinstance(entry, recorder.Committed):
        return replace(entry, tokens=array("i", map(other_word, entry.tokens)))
    return entry


def test_a_prompt_of_its_own_is_all_ones() -> None:
    told = by_beginning({"a": [81, 15, 99], "b": [81, 15, 7], "c": [3, 15]}, dict.fromkeys("abc", b""), [])
    assert [[told.number(whose, at, 0) for at in range(size)] for whose, size in (("a", 3), ("b", 3), ("c", 2))] == [
        [2, 1, 2],
        [2, 1, 1],
        [1, 1],
    ]


sequences = st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=12)


@given(sequences, st.sets(st.integers(0, 9), max_size=3))
def test_numbers_keep_equality_and_order_behind_equal_beginnings(many: list[list[int]], stops: set[int]) -> None:
    named = dict(enumerate(many))
    told = by_beginning(named, dict.fromkeys(named, b""), stops)
    numbers = {name: [told.number(name, at, t) for at, t in enumerate(each)] for name, each in named.items()}
    assert sorted(named, key=lambda name: (named[name], name)) == sorted(named, key=lambda name: (numbers[name], name))
    for a in named:
        for b in named:
            for length in range(min(len(named[a]), len(named[b])) + 1):
                assert (named[a][:length] == named[b][:length]) == (numbers[a][:length] == numbers[b][:length])
    for name, each in named.items():
        for token, number in zip(each, numbers[name], strict=True):
            assert (token in stops) == (number in told.stops.values()) and 0 <= number < told.size
            assert token not in stops or told.stops[token] == number


def test_ranks_are_the_same_everywhere() -> None:
    told = by_rank([9, 4, 4, 7], [5])
    assert [told.number(None, 0, token) for token in (4, 5, 7, 9)] == [0, 1, 2, 3] and told.stops == {5: 1}


@pytest.mark.parametrize("seed", range(6))
def test_a_record_that_lost_its_beginning_begins_where_nothing_was_live(seed: int) -> None:
    life = Life(replace(LIMITS, enable_prefix_caching=False), seed, most_bytes=12_000)
    for _ in range(12):
        life.live(6)
        while life.scheduler.has_work:
            life.step()
    record = through_a_file(life.record())
    assert record.num_lost > 0 and isinstance(record.entries[0], dump.Quiet)
    found = replay(record)
    assert found.raised is None and (found.difference is None or found.num_plans > 0)


def test_of_a_record_that_begins_in_the_middle_of_things_the_plans_are_left() -> None:
    life = Life(replace(LIMITS, max_num_queued_reqs=0), 4, most_bytes=8_000)
    for _ in range(100):
        for _ in range(4):
            life.submit()
        life.step()
    assert life.scheduler.record.num_lost > 0
    record = through_a_file(life.record())
    assert {type(entry) for entry in record.entries} == {dump.Planned}
    found = replay(record)
    assert found.left_out is not None and found.num_plans == 0 and not found.violations


def later(life: Life, moves: int) -> dump.Confided:
    """The record of a life from where nothing was live, in its middle, on."""
    life.live(moves)
    while life.scheduler.has_work or life.scheduler.roster.held:
        for choice in tuple(life.scheduler.roster.held):
            life.release(choice.request_id)
        if life.scheduler.has_work:
            life.step()
    lost = len(life.scheduler.record.entries())
    life.live(moves)
    entries = life.scheduler.record.entries()[lost:]
    first = next((at for at, entry in enumerate(entries) if isinstance(entry, recorder.Quiet)), len(entries))
    return through_a_file(confided(entries[first:], lost + first, life.scheduler.limits))


@given(st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_what_was_hit_before_the_record_begins_is_put_into_the_cache_first(seed: int) -> None:
    """Where nothing is evicted, that is all that must be known."""
    record = later(Life(replace(LIMITS, num_blocks=2000), seed, asks=False), 30)
    found = replay(record, audits=True)
    assert (found.difference, found.raised, found.violations) == (None, None, [])
    assert found.num_plans == num_plans(record) and record.num_lost


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_what_cannot_be_known_of_the_cache_is_named_as_the_reason(seed: int) -> None:
    """With evictions, which blocks went first is not known."""
    record = later(Life(replace(LIMITS, num_blocks=30, max_num_queued_reqs=0), seed), 30)
    found = replay(record)
    assert found.raised is None and found.violations == []
    assert found.difference is None or found.difference.recorded or found.difference.replayed


def test_a_whole_prompt_that_was_hit_is_hit_again() -> None:
    life = Life(LIMITS, 1)
    prompt = tuple(range(4, 16))

    def run(name: str) -> None:
        life.scheduler.submit(Request(request_id=name, prompt=prompt, params=SamplingParams(max_tokens=2)), life.tick())
        while life.scheduler.has_work:
            plan = life.scheduler.plan(life.tick())
            life.scheduler.commit(plan, life.ledger.execute(plan), life.tick())

    run("first")
    lost = len(life.scheduler.record.entries())
    run("again")
    record = confided(life.scheduler.record.entries()[lost:], lost, life.scheduler.limits)
    rows = next(entry.rows for entry in record.entries if isinstance(entry, dump.Planned))
    assert rows is not None and rows[0][2:4] == (11, 1), "all but the last token was cached"
    found = replay(record)
    assert found.difference is None and found.num_plans == 2
    record.entries = [entry for entry in record.entries if not isinstance(entry, dump.Quiet)]
    assert replay(record).left_out is not None


def test_a_difference_says_which_works_and_who_waits() -> None:
    life = Life(LIMITS, 3)
    life.live(30)
    record = life.record()
    record.limits = replace(record.limits, max_num_seqs=2)
    found = replay(record)
    assert found.difference is not None and found.difference.recorded and "seqs" in found.difference.why


def test_a_plan_that_breaks_breaks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(LIMITS, 5)
    life.live(10)
    life.submit()

    def explode(*_: object) -> None:
        raise ZeroDivisionError("policy is broken")

    monkeypatch.setattr("octavo.core.waits.Waits.planned", explode)
    with pytest.raises(ZeroDivisionError):
        while True:
            life.step()
    found = replay(life.record())
    assert found.raised == "ZeroDivisionError: policy is broken" and not found.broke, "the first plan breaks already"
    monkeypatch.undo()
    found = replay(life.record())
    assert found.difference is not None and found.difference.why == "it broke then, and does not break now"


def test_files_are_private_few_and_read_back(tmp_path: Path) -> None:
    life = Life(LIMITS, 2)
    life.live(10)
    told = dump.Dump(
        dump.VERSION,
        "asked for",
        "",
        "0",
        "f",
        0.0,
        life.record(),
        None,
    )
    for second in range(dump.MOST_FILES + 3):
        told.written = 1e9 + second
        path = dump.write(told, tmp_path / "deep" / "folder")
    assert path.stat().st_mode & 0o777 == 0o600 and dump.read(path) == told
    assert len(list(path.parent.iterdir())) == dump.MOST_FILES


@pytest.mark.parametrize(
    "raw", [b"", b"\x1f\x8b", b"not gzip", b"version", msgspec.json.encode({"version": 99}), b'{"version": 1}']
)
def test_a_file_that_is_no_dump_is_said_to_be_none(tmp_path: Path, raw: bytes) -> None:
    import gzip

    for name, content in (("raw", raw), ("packed", gzip.compress(raw))):
        file = tmp_path / name
        file.write_bytes(content)
        with pytest.raises(dump.DumpError, match=name):
            dump.read(file)


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255))
@settings(max_examples=40)
def test_a_damaged_file_is_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, tail: bytes, at: int, byte: int
) -> None:
    import gzip

    life = Life(LIMITS, 2)
    life.live(3)
    raw = bytearray(msgspec.json.encode(dump.Dump(dump.VERSION, "r", "", "0", "f", 0.0, life.record(), None)))
    raw[at % len(raw)] = byte
    file = tmp_path_factory.mktemp("damaged") / "x"
    file.write_bytes(gzip.compress(bytes(raw)) + tail)
    with suppress(dump.DumpError):
        replay(dump.read(file).record)
