"""Confide: a scheduler's record as the entries of a dump, without what was said and by whom. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from octavo.core.pins import PinWish
from octavo.core.plan import ScoredToken
from octavo.core.request import Request
from octavo.core.sampling import MAX_LOGPROBS, SamplingParams
from octavo.core.structured import Structure, StructuredOutput
from octavo.core.types import Limits, TokenId
from octavo.engine import dump, recorder
from octavo.engine.asks import AddPin, ListPins, RemovePin, ResetPrefixCache
from octavo.engine.disguise import Disguise, by_beginning, by_rank

Whose = tuple[Any, int]
"""A sequence of tokens: a request's number and a choice, or PROMPT; or a pin's id, and PROMPT."""
PROMPT = -1
_LAST_PLANS = 200
_ANY_FORM = StructuredOutput(Structure.JSON_OBJECT)


@dataclass(slots=True)
class _Said:
    """All that was said in a record."""

    requests: dict[int, Request] = field(default_factory=dict[int, Request])
    sequences: dict[Whose, list[TokenId]] = field(default_factory=dict[Whose, "list[TokenId]"])
    spaces: dict[Whose, bytes] = field(default_factory=dict[Whose, bytes])
    """Whose cache they may share."""
    sampled: dict[int, list[list[tuple[Whose, int]]]] = field(
        default_factory=dict[int, "list[list[tuple[Whose, int]]]"]
    )
    """Commits, by their place in the record -> of each work, where what it sampled stands."""
    forms: list[tuple[str, Whose, str | None]] = field(default_factory=list[tuple[str, Whose, "str | None"]])
    candidates: set[TokenId] = field(default_factory=set[TokenId])
    """Of beams."""


def confided(record: Sequence[recorder.Entry], num_lost: int, limits: Limits) -> dump.Confided:
    """A record fit to be given away. It begins with the engine; or, where that is lost, where nothing was live.

    Where something always was, the last plans are all that is left of it.
    """
    quiet = next((at for at, entry in enumerate(record) if isinstance(entry, recorder.Quiet)), None)
    if num_lost and quiet is None:
        record = [entry for entry in record if isinstance(entry, recorder.Planned)][-_LAST_PLANS:]
    first = quiet or 0 if num_lost else 0
    kept = [entry for entry in record[first:] if not _is_out_of_range(entry, limits)]
    said = _said(kept)
    stops = {*limits.eos_token_ids, *(t for each in said.requests.values() for t in each.params.stop_token_ids)}
    if limits.speculation is not None or any(each.params.use_beam_search for each in said.requests.values()):
        disguise = by_rank(said.candidates.union(*said.sequences.values()), stops)
    else:
        disguise = by_beginning(said.sequences, said.spaces, stops)
    teller = _Teller(said, disguise)
    return dump.Confided(
        tokens=disguise.name,
        num_lost=num_lost + first,
        limits=teller.limits(limits),
        entries=[told for at, entry in enumerate(kept) for told in teller.entry(at, entry)],
        forms=[dump.Form(name, teller.generated(whose), fault) for name, whose, fault in said.forms],
    )


def _is_out_of_range(entry: recorder.Entry, limits: Limits) -> bool:
    """Is it a request that is refused for its tokens? Ranks cannot tell of it, and a refusal leaves no trace."""
    if not isinstance(entry, recorder.Submitted) or not entry.request.prompt:
        return False
    return min(entry.request.prompt) < 0 or max(entry.request.prompt) >= limits.vocab_size


def _said(record: Sequence[recorder.Entry]) -> _Said:
    said, plan, numbers = _Said(), recorder.Planned(0.0), dict[str, int]()
    for at, entry in enumerate(record):
        if isinstance(entry, recorder.Submitted):
            numbers[entry.request.request_id] = entry.number
            said.requests[entry.number] = entry.request
            said.sequences[entry.number, PROMPT] = list(entry.request.prompt)
            said.spaces[entry.number, PROMPT] = entry.request.namespace
        elif isinstance(entry, recorder.Asked) and isinstance(entry.ask, AddPin):
            wish = entry.ask.wish
            said.sequences[wish.pin_id, PROMPT], said.spaces[wish.pin_id, PROMPT] = list(wish.tokens), wish.namespace
        elif isinstance(entry, recorder.Planned):
            plan = entry
        elif isinstance(entry, recorder.Committed):
            said.sampled[at] = list(_extended(said, plan, entry))
            said.candidates.update(t for ranked in entry.ranked.values() for each in ranked for t in _tokens(each))
            ends = [end for end in entry.formed if end[0] in numbers]
            said.forms += [(name, (numbers[name], choice), fault) for name, choice, fault in ends]
    return said


def _tokens(ranked: ScoredToken) -> Iterator[TokenId]:
    yield ranked.token
    yield from (token for token, _ in ranked.alternatives)


def _extended(said: _Said, plan: recorder.Planned, entry: recorder.Committed) -> Iterator[list[tuple[Whose, int]]]:
    """Puts each sampled token behind those of its choice; says where it stands, work by work."""
    assert plan.rows is not None, "what was committed was planned"
    rows, tokens = plan.rows, iter(entry.tokens)
    for place, count in enumerate(entry.num_tokens):
        number, choice = rows[place * recorder.ROW : place * recorder.ROW + 2]
        choices = plan.forks.get(place) or (choice,) * count
        yield [_put(said, (number, one), next(tokens)) for one in choices[:count]]


def _put(said: _Said, whose: Whose, token: TokenId) -> tuple[Whose, int]:
    if whose not in said.sequences:
        prompt = (whose[0], PROMPT)
        said.sequences[whose], said.spaces[whose] = said.sequences[prompt].copy(), said.spaces[prompt]
    said.sequences[whose].append(token)
    return whose, len(said.sequences[whose]) - 1


class _Teller:
    """Entries as a dump has them. Tenants and namespaces are numbered as they come."""

    def __init__(self, said: _Said, disguise: Disguise) -> None:
        self._said = said
        self._disguise = disguise
        self._tenants = {"": ""}
        self._spaces = {b"": b""}

    def limits(self, limits: Limits) -> Limits:
        size = max(self._disguise.size, min(limits.vocab_size, MAX_LOGPROBS))
        return replace(limits, vocab_size=size, eos_token_ids=self._stops(limits.eos_token_ids))

    def generated(self, whose: Whose) -> list[int]:
        prompt_len = len(self._said.requests[whose[0]].prompt)
        return list(self._numbers(whose)[prompt_len:])

    def entry(self, at: int, entry: recorder.Entry) -> Iterator[dump.AnyEntry]:
        if isinstance(entry, recorder.Submitted):
            yield dump.Submitted(entry.time_s, self._request(entry), entry.number)
        elif isinstance(entry, recorder.Withdrawn):
            yield dump.Withdrawn(entry.time_s, entry.request_id, entry.choice)
        elif isinstance(entry, recorder.Guided):
            yield dump.Guided(entry.time_s, entry.request_id)
        elif isinstance(entry, recorder.GivenUp):
            yield dump.GivenUp(entry.time_s, entry.request_id)
        elif isinstance(entry, recorder.Asked):
            yield from self._asked(entry)
        elif isinstance(entry, recorder.PinsExpired):
            yield dump.PinsListed(entry.time_s)
        elif isinstance(entry, recorder.Noted):
            yield dump.Noted(entry.time_s, entry.num_reports)
        elif isinstance(entry, recorder.Planned):
            yield _planned(entry)
        elif isinstance(entry, recorder.Committed):
            yield self._committed(at, entry)
        elif isinstance(entry, recorder.Failed):
            yield dump.Failed(entry.time_s)
        elif isinstance(entry, recorder.Stuck):
            yield dump.Stuck(entry.time_s)
        elif isinstance(entry, recorder.Throttled):
            yield dump.Throttled(entry.time_s, entry.throttle)
        else:
            yield dump.Quiet(entry.time_s, entry.num_cached, entry.num_pinned, entry.throttle, entry.lengths)

    def _request(self, entry: recorder.Submitted) -> Request:
        """What policy looks at; of everything else the default."""
        asked, params = entry.request, entry.request.params
        told = SamplingParams(
            n=params.n,
            best_of=params.best_of,
            use_beam_search=params.use_beam_search,
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
            temperature=params.temperature,
            max_tokens=params.max_tokens,
            ignore_eos=params.ignore_eos,
            stop_token_ids=self._stops(params.stop_token_ids),
            prompt_logprobs=params.prompt_logprobs,
            structured_outputs=None if params.structured_outputs is None else _ANY_FORM,
        )
        return replace(
            asked,
            prompt=self._numbers((entry.number, PROMPT)),
            params=params if asked.pooling is not None else told,
            seed=0,
            namespace=self._space(asked.namespace),
            tenant=self._tenant(asked.tenant),
        )

    def _asked(self, entry: recorder.Asked) -> Iterator[dump.AnyEntry]:
        ask = entry.ask
        if isinstance(ask, AddPin):
            yield dump.Pinned(entry.time_s, self._wish(ask.wish))
        elif isinstance(ask, RemovePin):
            yield dump.Unpinned(entry.time_s, ask.pin_id, None if ask.tenant is None else self._tenant(ask.tenant))
        elif isinstance(ask, ListPins):
            yield dump.PinsListed(entry.time_s)
        elif isinstance(ask, ResetPrefixCache):
            yield dump.CacheReset(entry.time_s)

    def _wish(self, wish: PinWish) -> PinWish:
        tokens, space = self._numbers((wish.pin_id, PROMPT)), self._space(wish.namespace)
        return replace(wish, tokens=tokens, namespace=space, tenant=self._tenant(wish.tenant))

    def _committed(self, at: int, entry: recorder.Committed) -> dump.Committed:
        number, sequences = self._disguise.number, self._said.sequences
        places = self._said.sampled[at]
        return dump.Committed(
            entry.time_s,
            sampled=[[number(whose, i, sequences[whose][i]) for whose, i in work] for work in places],
            ranked={place: self._candidates(ranked[0]) for place, ranked in entry.ranked.items()},
            errors=[dump.Broken(place, *error) for place, error in entry.errors.items()],
            done=entry.done,
        )

    def _candidates(self, ranked: ScoredToken) -> list[tuple[int, float]]:
        """Only where tokens are told by their rank."""
        return [(self._disguise.number(None, 0, token), logprob) for token, logprob in ranked.alternatives]

    def _numbers(self, whose: Whose) -> tuple[int, ...]:
        number = self._disguise.number
        return tuple([number(whose, at, token) for at, token in enumerate(self._said.sequences[whose])])

    def _stops(self, tokens: Sequence[TokenId]) -> tuple[int, ...]:
        return tuple([self._disguise.stops[token] for token in tokens])

    def _tenant(self, name: str) -> str:
        return self._tenants.setdefault(name, f"tenant-{len(self._tenants)}")

    def _space(self, namespace: bytes) -> bytes:
        return self._spaces.setdefault(namespace, b"space-%d" % len(self._spaces))


def _planned(entry: recorder.Planned) -> dump.Planned:
    flat = entry.rows
    rows = None if flat is None else [tuple(flat[at : at + recorder.ROW]) for at in range(0, len(flat), recorder.ROW)]
    return dump.Planned(entry.time_s, entry.step, rows, entry.num_copies)
