"""Any interleaving of submit, plan, commit, cancel, failures and preemption gives each request what it gets alone."""

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, precondition, rule

from octavo.core.eviction import EVICTIONS
from octavo.core.hashing import HASHES, BlockHash
from octavo.core.plan import StepPlan, StepResult, WorkResult
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.core.types import NO_BLOCK, FinishReason, Limits, Pooling, Speculation
from tests.core.replica import Replica, alone, embedding, one_bit, tier
from tests.core.words import one_of, word_guide

TOKENS = st.integers(0, 1)

WINDOWS = st.one_of(
    st.just((None,)),
    st.lists(st.one_of(st.none(), st.integers(1, 8)), min_size=1, max_size=3).map(tuple),
)
"""One group with full attention, or up to three groups of any kind."""


GUESSES = Speculation(num_speculative_tokens=3, prompt_lookup_max=3, prompt_lookup_min=1)


@st.composite
def draw_limits(draw: st.DrawFn) -> Limits:
    windows = draw(WINDOWS)
    return Limits(
        num_blocks=draw(st.one_of(st.integers(1, 12), st.integers(6, 12))) * len(windows),
        block_size=draw(st.sampled_from([1, 2, 4])),
        vocab_size=draw(st.sampled_from([2, 2, 4])),
        max_model_len=draw(st.one_of(st.integers(2, 20), st.integers(12, 20))),
        max_num_seqs=draw(st.one_of(st.integers(1, 6), st.integers(3, 6))),
        max_num_batched_tokens=draw(st.integers(1, 8)),
        prefill_tokens_beside_decodes=draw(st.sampled_from([0, 0, 1, 3])),
        enable_prefix_caching=draw(st.sampled_from([True, True, True, False])),
        prefix_match_unit=draw(st.integers(1, 4)),
        max_num_partial_prefills=draw(st.integers(1, 2)),
        long_prefill_token_threshold=draw(st.integers(0, 3)),
        block_manager=draw(st.sampled_from(["v1", "v2"])),
        max_num_queued_reqs=draw(st.sampled_from([0, 0, 3])),
        max_num_queued_tokens=draw(st.sampled_from([0, 0, 20])),
        scheduling_policy=draw(st.sampled_from(["fcfs", "priority", "fair"])),
        eviction_policy=draw(st.sampled_from(sorted(EVICTIONS))),
        eos_token_ids=draw(st.sampled_from([(), (), (1,)])),
        speculation=draw(st.sampled_from([None, GUESSES])),
        windows=windows,
    )


LIMITS = draw_limits()

OPTIONS = st.fixed_dictionaries(
    {
        "block_hash": st.sampled_from([HASHES["sha256"], BlockHash(one_bit)]),
        "victim": st.sampled_from(["least_work_lost", "latest"]),
        "chunk": st.sampled_from(["share", "fill"]),
        "watermark": st.sampled_from([0.0, 0.2]),
    }
)

TIERS = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {
            "num_blocks": st.integers(0, 8),
            "num_storing": st.integers(1, 4),
            "num_staged": st.integers(0, 4),
            "persistent": st.booleans(),
        }
    ),
)
"""No lower tier, or one that is too small for nearly everything."""


WORDS = st.lists(st.text("01", min_size=1, max_size=6), min_size=1, max_size=5).map(lambda words: one_of(*words))
"""Forms: some of their words begin others, so that answers may end or go on."""


@st.composite
def beam_params(draw: st.DrawFn) -> SamplingParams:
    max_tokens = draw(st.integers(1, 6))
    width = draw(st.sampled_from([1, 2, 2, 3, 4]))
    return SamplingParams(
        use_beam_search=True,
        n=draw(st.integers(1, width)),
        best_of=width,
        max_tokens=max_tokens,
        min_tokens=min(draw(st.integers(0, 3)), max_tokens),
        ignore_eos=draw(st.booleans()),
        stop_token_ids=draw(st.sampled_from([(), (), (0,)])),
        logprobs=draw(st.sampled_from([None, 1])),
        prompt_logprobs=draw(st.sampled_from([None, None, 2])),
        length_penalty=draw(st.sampled_from([0.0, 1.0, 2.0])),
        early_stopping=draw(st.sampled_from([True, False, "never"])),
    )


@st.composite
def sampling_params(draw: st.DrawFn) -> SamplingParams:
    max_tokens = draw(st.one_of(st.none(), st.integers(1, 8), st.integers(4, 8)))
    return SamplingParams(
        n=draw(st.sampled_from([1, 1, 1, 2, 3, 4])),
        best_of=draw(st.sampled_from([None, None, None, 4])),
        temperature=draw(st.sampled_from([0.0, 1.0])),
        max_tokens=max_tokens,
        min_tokens=min(draw(st.integers(0, 3)), max_tokens or 3),
        ignore_eos=draw(st.sampled_from([True, True, False])),
        stop_token_ids=draw(st.sampled_from([(), (), (), (0,)])),
        logprobs=draw(st.sampled_from([None, 1])),
        prompt_logprobs=draw(st.sampled_from([None, None, 0, 2])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.5])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 0.5])),
        structured_outputs=draw(st.none() | st.none() | WORDS),
    )


CUT_SHORT = (FinishReason.ABORT, FinishReason.ERROR)


def one_begins_the_other(a: list, b: list) -> bool:
    """A request may fail on its own too, where all tokens are banned: in chunks it then tells more than at once."""
    shorter = min(len(a), len(b))
    return a[:shorter] == b[:shorter]


class SchedulerMachine(RuleBasedStateMachine):
    """Two token ids, tiny pools and budgets: so that sharing, eviction and preemption are the rule."""

    live = Bundle("live")

    @initialize(limits=LIMITS, options=OPTIONS, lower=TIERS)
    def start(self, limits: Limits, options: dict, lower: dict | None) -> None:
        self.limits, self.options = limits, options
        windowed = limits.windows != (None,)
        below = None if lower is None or windowed else tier(**lower, block_size=limits.block_size)
        self.replica = Replica(limits, tier=below, **options)
        self.submitted: dict[str, Request] = {}
        self.pinned: dict[str, int] = {}
        """Blocks that were pinned when a request came."""
        self.num_pins = 0
        self.cancelled: set[tuple[str, int | None]] = set()
        self.flying: StepPlan | None = None

    @rule(
        target=live,
        prompt=st.lists(TOKENS, min_size=1, max_size=8),
        params=st.one_of(sampling_params(), sampling_params(), beam_params()),
        priority=st.integers(0, 2),
        namespace=st.sampled_from([b"", b"", b"other"]),
        tenant=st.sampled_from(["", "a", "b"]),
        seed=st.integers(0, 3),
    )
    def submit(
        self, prompt: list[int], params: SamplingParams, priority: int, namespace: bytes, tenant: str, seed: int
    ) -> str:
        name = f"r{len(self.submitted)}"
        request = Request(
            request_id=name,
            prompt=tuple(prompt),
            params=params,
            seed=seed,
            priority=priority,
            namespace=namespace,
            tenant=tenant,
        )
        self._submit(request)
        return name

    @rule(
        target=live,
        prompt=st.lists(TOKENS, min_size=1, max_size=12),
        pooling=st.sampled_from(Pooling),
        priority=st.integers(0, 2),
        namespace=st.sampled_from([b"", b"", b"other"]),
        tenant=st.sampled_from(["", "a", "b"]),
    )
    def embed(self, prompt: list[int], pooling: Pooling, priority: int, namespace: bytes, tenant: str) -> str:
        name = f"r{len(self.submitted)}"
        self._submit(embedding(name, prompt, pooling, priority=priority, namespace=namespace, tenant=tenant))
        return name

    def _submit(self, request: Request) -> None:
        self.submitted[request.request_id] = request
        self.pinned[request.request_id] = self.replica.scheduler.load().blocks_pinned
        self.replica.submit(request)

    @rule(name=live, twins=st.integers(1, 4))
    def submit_twins(self, name: str, twins: int) -> None:
        """Equal prompts, so that there is something to hit, now or while it is being computed."""
        for _ in range(twins):
            twin = f"r{len(self.submitted)}"
            self._submit(replace(self.submitted[name], request_id=twin))

    @rule(name=live)
    def guide(self, name: str) -> None:
        """The guide comes, whatever became of its request; for one that needs none, or has one, nothing happens."""
        output = self.submitted[name].params.structured_outputs or one_of("0")
        self.replica.guide(name, word_guide(output, self.limits.vocab_size))

    @rule(name=live)
    def give_up(self, name: str) -> None:
        held = any(choice.request_id == name for choice in self.replica.scheduler.roster.held)
        before = len(self.replica.outcomes[name].finished)
        self.replica.give_up(name, "it takes too long")
        assert held == (len(self.replica.outcomes[name].finished) > before)

    @precondition(lambda self: self.flying is None)
    @rule(steps=st.integers(1, 6), deliver=st.booleans())
    def step(self, steps: int, deliver: bool) -> None:
        for _ in range(steps):
            self.replica.step(deliver=deliver)

    @precondition(lambda self: self.replica.shelf.reports)
    @rule(count=st.integers(1, 3))
    def deliver(self, count: int) -> None:
        """In the order in which they were asked for, at any time, also while a step is in flight."""
        self.replica.deliver(count)

    @precondition(lambda self: self.replica.shelf.reports)
    @rule(data=st.data(), gives_up=st.sampled_from([False, False, False, True]))
    def spoil(self, data: st.DataObject, gives_up: bool) -> None:
        """A block could not be written, or what was read of it is corrupt."""
        index = data.draw(st.integers(0, len(self.replica.shelf.reports) - 1))
        self.replica.shelf.spoil(index, gives_up=gives_up)

    @precondition(lambda self: self.flying is None)
    @rule(num_blocks=st.integers(1, 3))
    def save(self, num_blocks: int) -> None:
        self.replica.save(num_blocks)

    @precondition(lambda self: self.flying is None)
    @rule()
    def take_off(self) -> None:
        plan = self.replica.plan()
        self.flying = plan if plan.work else None
        if not plan.work:
            self.replica.execute(plan)

    @precondition(lambda self: self.flying is not None)
    @rule()
    def commit(self) -> None:
        self.replica.commit(self._land())

    @precondition(lambda self: self.flying is not None)
    @rule(executed=st.booleans())
    def fail(self, executed: bool) -> None:
        """The step fails before or after it wrote to memory."""
        plan = self._land()
        if executed:
            self.replica.execute(plan)
        else:
            self.replica.shelf.execute(plan, lambda: None)
        self.replica.fail(plan)

    @precondition(lambda self: self.flying is not None)
    @rule(data=st.data())
    def commit_with_a_failed_work(self, data: st.DataObject) -> None:
        plan = self._land()
        result = self.replica.execute(plan)
        position = data.draw(st.integers(0, len(plan.work) - 1))
        failed = WorkResult(plan.work[position].request_id, plan.work[position].choice, error="not finite")
        results = (*result.results[:position], failed, *result.results[position + 1 :])
        self.replica.commit_result(plan, StepResult(plan.step, results))

    @rule(name=consumes(live))
    def cancel(self, name: str) -> None:
        self.cancelled.add((name, None))
        self.replica.cancel(name)
        self.replica.cancel(name)

    @rule(name=live, choices=st.lists(st.integers(0, 4), min_size=1, max_size=3))
    def cancel_choices(self, name: str, choices: list[int]) -> None:
        """In whatever state each is: queued, followed, following, in flight, preempted, over, or not there at all."""
        for choice in choices:
            self.cancelled.add((name, choice))
            self.replica.cancel(name, choice)

    @precondition(lambda self: self.flying is None)
    @rule(name=live, full=st.booleans(), ttl_s=st.sampled_from([3.0, 1000.0]), quota=st.integers(0, 8))
    def pin(self, name: str, full: bool, ttl_s: float, quota: int) -> None:
        """What a request asked, or asked and was answered: where it is cached whole, and fits, it is pinned."""
        request, outcome = self.submitted[name], self.replica.outcomes[name]
        tokens = (*request.prompt, *(outcome.ids() if full else ()))
        self.num_pins += 1
        pinned = self.replica.pin(f"p{self.num_pins}", tokens, namespace=request.namespace, ttl_s=ttl_s, quota=quota)
        size = self.limits.block_size
        if pinned.pin is not None:
            assert pinned.pin.num_tokens == len(tokens) // size * size and pinned.pin.num_blocks <= quota

    @precondition(lambda self: self.flying is None)
    @rule(number=st.integers(1, 6))
    def unpin(self, number: int) -> None:
        self.replica.unpin(f"p{number}")

    @precondition(lambda self: self.flying is None)
    @rule()
    def reset_the_cache(self) -> None:
        held = self.replica.scheduler.load().blocks_leased
        events = self.replica.scheduler.reset_prefix_cache(0.0)
        assert (events is None) == bool(held)
        pinned = self.replica.scheduler.cache.pins.blocks
        left = {block for entry in self.replica.scheduler.cache.index.entries() for block in entry.blocks}
        assert held or left - {NO_BLOCK} == pinned, "only what is pinned outlives a reset"
        self.replica.check()

    def teardown(self) -> None:
        if not hasattr(self, "replica"):
            return
        if self.flying is not None:
            self.replica.commit(self._land())
        for name in self.submitted:
            self.guide(name)
        self.replica.run(max_steps=50 + 20 * sum(self._size(request) for request in self.submitted.values()))
        for name, request in self.submitted.items():
            self._compare(name, request)

    def _land(self) -> StepPlan:
        plan, self.flying = self.flying, None
        assert plan is not None
        return plan

    def _size(self, request: Request) -> int:
        """Tokens to compute; where a pool holds one beam of a search at a time, each from its start in each round."""
        params, prompt_len = request.params, len(request.prompt)
        num_rounds = params.max_tokens or 1 if params.use_beam_search else 1
        return params.width * (prompt_len + (params.max_tokens or self.limits.max_model_len)) * num_rounds

    def _compare(self, name: str, request: Request) -> None:
        room = replace(self.limits, num_blocks=self.limits.num_blocks - self.pinned[name])
        got, due = self.replica.outcomes[name], alone(request, room, **self.options)
        if got.refused is not None:
            for_now = got.refused.retry_after_s is not None
            assert self.limits.max_num_queued_reqs or self.limits.max_num_queued_tokens if for_now else due.refused
            return
        assert due.refused is None
        assert sorted(got.finished) == list(range(request.params.num_choices))
        for choice, finished in got.finished.items():
            tokens, last = got.tokens[choice], due.finished[choice]
            if finished.reason is FinishReason.ABORT:
                assert {(name, None), (name, choice)} & self.cancelled
            if finished.reason in CUT_SHORT:
                assert one_begins_the_other(tokens, due.tokens[choice])
                assert one_begins_the_other(got.scored, due.scored)
                assert got.embedding is None
            else:
                assert got.embedding == due.embedding
                assert tokens == due.tokens[choice] and got.scored == due.scored
                assert (finished.reason, finished.stop_token) == (last.reason, last.stop_token)


TestScheduler = SchedulerMachine.TestCase
