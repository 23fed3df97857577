"""Choices that are kept to a form: held until their guide comes, and then by the oracle's words."""

import pytest

from octavo.core.events import Finished, Preempted, Queued
from octavo.core.types import FinishReason
from tests.core.replica import Replica, limits, request
from tests.core.words import WordGuide, one_of, word_guide

LIMITS = limits(eos_token_ids=(7,))


def guided(replica: Replica, *words: str, name: str = "a", prompt: tuple[int, ...] = (1, 2, 3), **params) -> None:
    """Submits a request for one of `words`, and gives it its guide."""
    output = one_of(*words)
    replica.submit(request(name, prompt, structured_outputs=output, max_tokens=6, **params))
    replica.guide(name, word_guide(output, LIMITS.vocab_size))


def text(replica: Replica, name: str = "a", choice: int = 0) -> str:
    return "".join(map(str, replica.outcomes[name].ids(choice)))


def test_a_request_is_held_until_its_guide_comes():
    replica = Replica(LIMITS)
    replica.submit(request("a", (1, 2), structured_outputs=one_of("345")))
    assert isinstance(replica.events[-1], Queued)
    load = replica.scheduler.load()
    assert (load.num_waiting, load.num_held, load.num_waiting_tokens) == (1, 1, 2)
    assert not replica.scheduler.has_work and not replica.plan().work
    replica.guide("a", word_guide(one_of("345"), 8))
    assert replica.scheduler.load().num_held == 0 and replica.scheduler.has_work
    replica.run()
    assert text(replica) == "345"


def test_who_is_held_holds_up_nobody_and_keeps_its_place():
    replica = Replica(limits(max_num_seqs=1))
    replica.submit(request("held", (1, 2), structured_outputs=one_of("345")))
    replica.submit(request("first", (1, 2)), request("last", (1, 2)))
    replica.step()
    replica.guide("held", word_guide(one_of("345"), 8))
    replica.run()
    order = [event.request_id for event in replica.events if isinstance(event, Finished)]
    assert order == ["first", "held", "last"]


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0}, {"repetition_penalty": 1.7}])
def test_an_answer_is_one_of_the_words_and_ends_with_it(params):
    replica = Replica(LIMITS)
    guided(replica, "012", "0134", "555", **params)
    replica.run()
    assert text(replica) in ("012", "0134", "555")
    finished = replica.outcomes["a"].finished[0]
    assert (finished.reason, finished.stop_token, finished.message) == (FinishReason.STOP, None, None)


def test_where_a_word_begins_another_the_answer_may_end_or_go_on():
    seen = set()
    for seed_like in range(20):
        replica = Replica(LIMITS)
        guided(replica, "0", "01", "012", prompt=(seed_like % 8, seed_like // 8), temperature=1.0)
        replica.run()
        finished = replica.outcomes["a"].finished[0]
        seen.add(text(replica))
        assert finished.reason is FinishReason.STOP
        assert finished.stop_token == (None if text(replica) == "012" else 7)
    assert seen == {"07", "017", "012"}


def test_before_min_tokens_the_answer_goes_on_where_it_can():
    for start in range(8):
        replica = Replica(LIMITS)
        guided(replica, "0", "01", "012", prompt=(start, 1), min_tokens=3)
        replica.run()
        assert text(replica) == "012"


def test_without_end_tokens_only_a_complete_word_ends_it():
    for start in range(8):
        replica = Replica(LIMITS)
        guided(replica, "0", "01", "012", prompt=(start, 1), ignore_eos=True)
        replica.run()
        assert text(replica) == "012"


def test_a_stop_token_ends_the_answer_where_it_is_text_or_the_text_may_end():
    for start in range(8):
        replica = Replica(LIMITS)
        guided(replica, "0123", "04", prompt=(start, 1), stop_token_ids=[1, 6])
        replica.run()
        assert text(replica) in ("01", "04")


def test_max_tokens_cut_an_answer_and_the_last_token_may_complete_it():
    for max_tokens, reason in ((3, FinishReason.LENGTH), (4, FinishReason.STOP)):
        replica = Replica(LIMITS)
        replica.submit(request("a", (1,), structured_outputs=one_of("0123"), max_tokens=max_tokens))
        replica.guide("a", word_guide(one_of("0123"), 8))
        replica.run()
        assert text(replica) == "0123"[:max_tokens]
        assert replica.outcomes["a"].reasons() == [reason]


def test_where_nothing_may_come_the_request_ends_with_its_own_error():
    replica = Replica(LIMITS)
    replica.submit(request("other", (1, 2), max_tokens=6, ignore_eos=True))
    guided(replica, "0123", allowed_token_ids=[0, 1, 5])
    replica.run()
    finished = replica.outcomes["a"].finished[0]
    assert (text(replica), finished.reason, finished.code) == ("01", FinishReason.ERROR, "nothing_allowed")
    assert replica.outcomes["other"].reasons() == [FinishReason.LENGTH]


def test_a_fault_of_a_guide_ends_the_request_with_all_its_choices():
    class Tired(WordGuide):
        def accept(self, token: int) -> None:
            super().accept(token)
            self.fault = "out of fuel" if len(self.so_far) == 2 else None

    replica = Replica(LIMITS)
    replica.submit(request("a", (1, 2), structured_outputs=one_of("0123"), n=2))
    replica.guide("a", Tired(word_guide(one_of("0123"), 8).words, 8))
    replica.run()
    ends = replica.outcomes["a"].finished.values()
    assert [(end.reason, end.message, end.code) for end in ends] == [
        (FinishReason.ERROR, "out of fuel", "structured_outputs")
    ] * 2
    assert not replica.scheduler.has_work


def test_without_a_guide_to_be_had_the_request_ends():
    replica = Replica(LIMITS)
    replica.submit(request("a", (1, 2), structured_outputs=one_of("0"), n=3))
    replica.give_up("a", "it is no grammar")
    assert {end.message for end in replica.outcomes["a"].finished.values()} == {"it is no grammar"}
    assert len(replica.outcomes["a"].finished) == 3 and not replica.scheduler.roster.requests
    replica.give_up("a", "again")
    replica.guide("a", word_guide(one_of("0"), 8))
    assert not replica.scheduler.has_work


@pytest.mark.parametrize("choice", [None, 0, 1])
def test_a_held_request_can_be_cancelled(choice):
    replica = Replica(LIMITS)
    replica.submit(request("a", (1, 2), structured_outputs=one_of("012"), n=2))
    replica.cancel("a", choice)
    replica.guide("a", word_guide(one_of("012"), 8))
    replica.run()
    for index, finished in replica.outcomes["a"].finished.items():
        cancelled = choice in (None, index)
        assert finished.reason is (FinishReason.ABORT if cancelled else FinishReason.STOP)
        assert text(replica, "a", index) == ("" if cancelled else "012")
    assert len(replica.outcomes["a"].finished) == 2 and replica.scheduler.load().num_held == 0


def test_each_choice_goes_its_own_way():
    replica = Replica(LIMITS)
    guided(replica, *(f"{a}{b}{c}" for a in "012" for b in "345" for c in "06"), n=4, temperature=1.0)
    replica.run()
    texts = [text(replica, "a", choice) for choice in range(4)]
    assert all(len(each) == 3 and each[0] in "012" and each[1] in "345" and each[2] in "06" for each in texts)
    assert len(set(texts)) > 1


def test_preemption_and_chunks_change_nothing():
    words = [f"{a}{b}{c}1{d}" for a in "012" for b in "345" for c in "06" for d in "12345"]
    due = Replica(LIMITS)
    guided(due, *words, prompt=(1, 2), temperature=1.0)
    due.run()
    tight = limits(num_blocks=5, block_size=2, max_num_batched_tokens=2, eos_token_ids=(7,))
    replica = Replica(tight)
    replica.submit(request("first", (5, 5), max_tokens=7, ignore_eos=True))
    guided(replica, *words, prompt=(1, 2), temperature=1.0)
    replica.run()
    assert any(isinstance(event, Preempted) and event.request_id == "a" for event in replica.events)
    assert text(replica) == text(due)
