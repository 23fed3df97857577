"""The trial: what would hold up or end whoever compiles it does so in a process of its own."""

import os
from collections.abc import Iterator

import pytest

from octavo.core.structured import StructuredOutputsParams as Params
from octavo.text.lark import GrammarError
from octavo.text.trial import Trial, Unfinished


@pytest.fixture
def trial() -> Iterator[Trial]:
    opened = Trial()
    yield opened
    opened.close()


SLOW = Params(json={"patternProperties": {f"^a{i}b": {"type": "integer"} for i in range(1000)}}).output()
"""Takes a minute."""


def links(count: int) -> Params:
    """A schema that leads to its end by way of this many others: compilers recurse."""
    schemas = {f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(count)}
    return Params(json={"$ref": "#/$defs/d0", "$defs": {**schemas, f"d{count}": {}}})


def test_verdicts(trial: Trial):
    trial.check(Params(json={"type": "object"}).output())
    with pytest.raises(GrammarError, match="notatype"):
        trial.check(Params(json={"type": "notatype"}).output())
    with pytest.raises(GrammarError, match="structures"):
        trial.check(Params(structural_tag={}).output())
    trial.check(Params(choice=["😀", "a\nb"]).output())


def test_verdicts_are_remembered(trial: Trial):
    bad, good = Params(regex="(").output(), Params(regex="a").output()
    assert not trial.knows(bad)
    for _ in range(2):
        with pytest.raises(GrammarError):
            trial.check(bad)
        trial.check(good)
    assert trial.knows(bad) and trial.knows(good)


def test_what_ends_the_process_is_refused_and_the_next_is_tried(trial: Trial):
    with pytest.raises(GrammarError, match="compile"):
        trial.check(links(1300).output())
    trial.check(links(50).output())


def test_what_takes_too_long_is_refused_and_the_next_is_tried(trial: Trial):
    with pytest.raises(GrammarError, match="takes more than"):
        trial.check(SLOW)
    assert trial.knows(SLOW)
    trial.check(Params(regex="b").output())


def test_what_a_busy_machine_does_not_get_done_is_not_known():
    trial = Trial(wait_s=0.1)
    with pytest.raises(Unfinished, match="busy"):
        trial.check(SLOW)
    assert not trial.knows(SLOW)
    trial.close()


def test_a_process_that_was_ended_is_replaced(trial: Trial):
    trial.check(Params(regex="a").output())
    process = trial._process
    assert process is not None
    os.kill(process.pid, 9)
    process.wait()
    trial.check(Params(regex="b").output())


def test_closing_leaves_no_process(trial: Trial):
    trial.check(Params(regex="a").output())
    process = trial._process
    trial.close()
    assert process is not None and process.poll() is not None
    trial.close()


def test_a_form_that_cannot_take_its_first_steps_is_refused(trial: Trial):
    def optional(count: int) -> Params:
        return Params(json={"type": "object", "properties": {f"p{i}": {} for i in range(count)}})

    trial.check(optional(800).output())
    with pytest.raises(GrammarError, match="items"):
        trial.check(optional(1600).output())
