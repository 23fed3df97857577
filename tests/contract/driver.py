"""Drives a backend with hand-made plans: what a scheduler would keep of a choice, and nothing of how it decides.

run = Run("a", prompt=(5, 6, 7), params=SamplingParams(temperature=0), block_ids=(3, 0))
finish(backend, [run], num_tokens=4, chunk=2)
run.outcome     # everything that came out of it, to compare bit for bit
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.core.plan import BlockCopy, HiddenSum, Sample, ScoredToken, StepPlan, Work, WorkResult
from octavo.core.ports import Backend
from octavo.core.sampling import SamplingParams

WHOLE = 10**9
"""A chunk that holds any prompt."""


@dataclass
class Run:
    """One choice of a request on a fixed block table; or, with `adds_from`, an embedding, which draws nothing."""

    name: str
    prompt: tuple[int, ...]
    params: SamplingParams
    block_ids: tuple[int, ...]
    seed: int = 7
    choice: int = 0
    banned: tuple[int, ...] = ()
    adds_from: int | None = None
    """The first position whose hidden state is added up."""
    computed: int = 0
    """Positions whose KV is in the blocks."""
    generated: list[ScoredToken] = field(default_factory=list)
    scored: list[ScoredToken] = field(default_factory=list)
    total: bytes = b""
    error: str | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.prompt + tuple(token.token for token in self.generated)

    @property
    def outcome(self) -> tuple[tuple[ScoredToken, ...], tuple[ScoredToken, ...], bytes, str | None]:
        return tuple(self.generated), tuple(self.scored), self.total, self.error

    def open(self, num_tokens: int) -> bool:
        """Is something left to do until it has so many tokens, or its sum?"""
        missing = len(self.generated) < num_tokens if self.adds_from is None else self.computed < len(self.prompt)
        return missing and self.error is None

    def work(self, chunk: int = WHOLE) -> Work:
        """The next `chunk` tokens, or what is left; a sample where that reaches the end."""
        tokens = self.tokens
        end = min(self.computed + chunk, len(tokens))
        if self.adds_from is not None:
            return self._bare(end)._replace(hidden_sum=self._hidden_sum(self.adds_from, end))
        scoring = self.params.prompt_logprobs is not None
        return Work(
            self.name,
            self.choice,
            self.computed,
            tokens[self.computed : end],
            self.block_ids,
            (self.sample(),) if end == len(tokens) else (),
            self.prompt[self.computed + 1 : end + 1] if scoring else (),
            self.params.prompt_logprobs or 0,
        )

    def _bare(self, end: int) -> Work:
        return Work(self.name, self.choice, self.computed, self.tokens[self.computed : end], self.block_ids)

    def _hidden_sum(self, adds_from: int, end: int) -> HiddenSum | None:
        return HiddenSum(max(0, adds_from - self.computed), self.total) if end > adds_from else None

    def sample(self) -> Sample:
        generated = tuple(token.token for token in self.generated)
        return Sample(
            self.params,
            self.seed,
            self.choice,
            len(generated),
            self.banned,
            self.prompt if self.params.repetition_penalty != 1 else (),
            generated if self.params.penalised else (),
        )

    def take(self, work: Work, result: WorkResult) -> None:
        assert (result.request_id, result.choice) == (self.name, self.choice)
        self.error = result.error
        if result.error is not None:
            assert result.sampled == result.scored == () and result.hidden_sum is None
            return
        assert (result.hidden_sum is None) == (work.hidden_sum is None)
        assert len(result.sampled) == len(work.samples)
        assert [token.token for token in result.scored] == list(work.targets)
        self.computed += len(work.tokens)
        self.generated += result.sampled
        self.scored += result.scored
        self.total = result.hidden_sum or self.total


def step(
    backend: Backend, runs: Sequence[Run], chunks: Sequence[int] | int = WHOLE, copies: Sequence[BlockCopy] = ()
) -> None:
    """One plan with the next work of each run."""
    sizes = [chunks] * len(runs) if isinstance(chunks, int) else chunks
    works = tuple(run.work(chunk) for run, chunk in zip(runs, sizes, strict=True))
    plan = StepPlan(41, works, tuple(copies))
    result = backend.execute(plan)
    assert result.step == plan.step
    assert all(seconds >= 0 for seconds in result.timings_s.values())
    for run, work, answer in zip(runs, works, result.results, strict=True):
        run.take(work, answer)


def finish(backend: Backend, runs: Sequence[Run], num_tokens: int, chunk: int = WHOLE) -> list[Run]:
    """Steps, all runs in one batch, until each has `num_tokens`, its sum, or an error."""
    while open_runs := [run for run in runs if run.open(num_tokens)]:
        step(backend, open_runs, chunk)
    return list(runs)
