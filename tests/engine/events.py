"""Hypothesis strategies for events and requests, of which each has all kinds of content."""

from hypothesis import strategies as st

from octavo.core.events import (
    Admitted,
    Audited,
    BlockEvicted,
    BlockStored,
    Computed,
    Drafted,
    Embedded,
    Finished,
    Generated,
    Preempted,
    PrefixPinned,
    PrefixUnpinned,
    PromptScored,
    Queued,
    Refused,
    Stalled,
    Steered,
    Stepped,
    Tiered,
)
from octavo.core.misses import Miss, MissReason
from octavo.core.plan import ScoredToken
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.core.structured import Structure, StructuredOutput
from octavo.core.types import FinishReason, Pooling
from octavo.core.waits import Waited

counts = st.integers(0, 2**31)
names = st.text(min_size=1, max_size=12)
numbers = st.floats(allow_nan=False)
plain_tokens = counts.map(ScoredToken)
scored_tokens = st.builds(
    ScoredToken, counts, numbers, st.none() | counts, st.lists(st.tuples(counts, numbers), max_size=3).map(tuple)
)
misses = st.builds(
    Miss, st.sampled_from(MissReason), counts, st.none() | numbers, *[st.lists(counts, max_size=3).map(tuple)] * 2
)
waits = st.lists(st.builds(Waited, names, numbers, counts, counts), max_size=2).map(tuple)
tokens = st.lists(plain_tokens | scored_tokens, min_size=1, max_size=3).map(tuple)


def of_requests(ids: list[str]) -> st.SearchStrategy:
    """Events of these requests that do not end them, and events of the engine."""
    request_ids, times = st.sampled_from(ids), st.sampled_from([0.0, 0.5, 7.25])
    return st.one_of(
        st.builds(Queued, request_ids, times, counts, counts, names, st.none() | counts, st.none() | numbers),
        st.builds(Admitted, request_ids, counts, times, counts, st.booleans(), st.none() | misses, counts, waits),
        st.builds(Computed, request_ids, counts, times, counts, counts),
        st.builds(PromptScored, request_ids, times, tokens),
        st.builds(Generated, request_ids, counts, times, tokens),
        st.builds(Generated, request_ids, counts, times, st.tuples(plain_tokens)),
        st.builds(Embedded, request_ids, times, st.binary(max_size=32), counts),
        st.builds(Drafted, request_ids, counts, times, counts, counts),
        st.builds(Preempted, request_ids, counts, times, counts, names, counts, names, counts),
        st.builds(Stalled, times, counts, st.dictionaries(names, counts), names),
        st.builds(Steered, times, names, names, counts, counts, *[st.none() | numbers] * 4),
        st.builds(Tiered, times, names, *[counts] * 11, st.none() | names),
        st.builds(BlockStored, times, st.binary(max_size=32), st.none() | st.binary(max_size=32), counts),
        st.builds(Audited, times, st.lists(names, max_size=2).map(tuple)),
        st.builds(BlockEvicted, times, st.binary(max_size=32)),
        st.builds(PrefixPinned, times, names, names, counts),
        st.builds(PrefixUnpinned, times, names, names, st.booleans()),
        st.builds(Stepped, times, *[counts] * 7, st.dictionaries(names, numbers), counts, counts),
    )


def refusals(request_id: str) -> st.SearchStrategy:
    return st.builds(Refused, st.just(request_id), st.just(1.0), names, names, st.none() | counts)


def endings(request_id: str, choice: int) -> st.SearchStrategy:
    return st.builds(
        Finished,
        st.just(request_id),
        st.just(choice),
        st.just(2.0),
        st.sampled_from(FinishReason),
        st.none() | counts,
        st.none() | names,
    )


params = st.builds(
    SamplingParams,
    n=st.integers(1, 4),
    temperature=st.floats(0, 2),
    seed=st.none() | st.integers(-(2**63), 2**64 - 1),
    stop=st.lists(names, max_size=2),
    logit_bias=st.dictionaries(counts, st.floats(-100, 100), max_size=2),
    allowed_token_ids=st.none() | st.lists(counts, min_size=1, max_size=3),
    logprobs=st.none() | st.integers(0, 5),
    max_tokens=st.none() | st.integers(1, 2**20),
    structured_outputs=st.none() | st.builds(StructuredOutput, st.sampled_from(Structure), names),
)
asked = st.one_of(
    st.fixed_dictionaries({"params": params}), st.fixed_dictionaries({"pooling": st.sampled_from(Pooling)})
)
requests = asked.flatmap(
    lambda kind: st.builds(
        Request,
        **{name: st.just(value) for name, value in kind.items()},
        request_id=names,
        prompt=st.lists(counts, max_size=5).map(tuple),
        seed=st.integers(0, 2**64 - 1),
        arrival_s=numbers,
        priority=st.integers(-5, 5),
        namespace=st.binary(max_size=8),
    )
)
