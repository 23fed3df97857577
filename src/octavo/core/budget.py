"""Who may enter: OK, LATER or NEVER, each with the arithmetic behind it.

NEVER is decided once, when a request is submitted, from its worst case alone: whoever passes can always finish, so
nothing waits for what cannot come. OK and LATER are decided by a StepBudget, which lives for one plan.
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

from octavo.core.beams import num_candidates
from octavo.core.groups import KvGroups
from octavo.core.request import Request
from octavo.core.sampling import MAX_LOGPROBS, ParameterError, SamplingParams, check_token_ids
from octavo.core.types import Limits, TokenId


class Need(NamedTuple):
    """What a waiting choice asks of a step."""

    num_left: int
    """Tokens that it has to compute before it can draw the next one."""
    num_tokens: int
    """How many of those it would compute now."""
    num_blocks: int
    """Free blocks that all its known tokens take, beyond what it hits."""
    num_seqs: int
    """Choices that it stands for."""


@dataclass(frozen=True, slots=True)
class Admission:
    """OK: compute `num_tokens` now."""

    num_tokens: int


class Later(NamedTuple):
    """LATER: others hold what it needs, and will give it back."""

    resource: str
    """`seqs`, `tokens`, `partial_prefills`, `blocks`; `turn`: it was preempted in this very step; `block_in_work`:
    another is computing its next block; `loading`: its next blocks are on their way from a lower tier."""
    need: int
    have: int


@dataclass(frozen=True, slots=True)
class Never:
    """NEVER: this engine, as it is configured, cannot serve it. `message` has need, have, and the flag to change."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Terms:
    """What an accepted request may use."""

    max_len: int
    """Prompt plus generated tokens of one choice, after clamping to the context and, if it named no limit, the pool.
    Of an embedding: its prompt."""
    expected: int = 0
    """Tokens that one choice is expected to generate."""


def worst_case_blocks(prompt_len: int, num_generated: int, n: int, groups: KvGroups) -> int:
    """Blocks that n choices of one prompt hold at most, alone in the pool.

        one choice     | full prompt blocks, shared by all n | own: prompt's tail and the generated tokens |

    With full attention that is at the end. A group with a window holds the most while the prompt is computed, or after
    the fork, when each choice has a window of its own.

    The last token of a choice is never stored: it is drawn, and nothing attends to it. So with one generated token
    the choices end where the prompt does, and there is nothing to fork.
    """
    num_tokens = prompt_len + num_generated - 1
    shared = prompt_len // groups.block_size
    forks = n if num_generated > 1 else 1
    together = shared + (groups.blocks_for(num_tokens) - shared) * forks
    most = 0
    for window in groups.windows:
        decoding = forks * groups.most_held(window, num_tokens, chunk=1)
        most += max(groups.most_held(window, num_tokens), min(together, decoding))
    return most


def most_tokens(prompt_len: int, n: int, num_blocks: int, groups: KvGroups, at_most: int) -> int:
    """The most tokens, up to `at_most`, that each of n choices can generate alone: `worst_case_blocks`, inverted."""

    def need(num_generated: int) -> int:
        return worst_case_blocks(prompt_len, num_generated, n, groups)

    return bisect_right(range(1, at_most + 1), num_blocks, key=need)


def stop_ids_of(params: SamplingParams, limits: Limits) -> frozenset[TokenId]:
    """The tokens that end a choice."""
    return frozenset(params.stop_token_ids + (() if params.ignore_eos else limits.eos_token_ids))


def judge(request: Request, limits: Limits, num_pinned: int = 0) -> Terms | Never:
    """Can this engine serve `request` when it has nothing else to do, beside what is pinned? Its terms, or why not."""
    return _judge_shape(request, limits) or _judge_size(request, limits, num_pinned)


def _judge_shape(request: Request, limits: Limits) -> Never | None:
    prompt, params = request.prompt, request.params
    if not prompt:
        return Never("empty_prompt", "the prompt has no tokens, and at least one is needed")
    for token in (min(prompt), max(prompt)):
        if not 0 <= token < limits.vocab_size:
            return Never("token_out_of_range", f"token id {token} in the prompt is not in 0 .. {limits.vocab_size - 1}")
    try:
        check_token_ids(params, limits.vocab_size)
    except ParameterError as error:
        return Never("token_out_of_range", str(error))
    if params.width > limits.max_num_seqs:
        name = "n" if params.best_of is None else "best_of"
        message = f"{name} is {params.width}, and at most {limits.max_num_seqs} choices run at once (--max-num-seqs)"
        return Never("too_many_choices", message)
    return _judge_beams(params, limits) if params.use_beam_search else None


def _judge_beams(params: SamplingParams, limits: Limits) -> Never | None:
    """So many candidates make sure that there is always a full width of beams."""
    num_stop_ids = len(stop_ids_of(params, limits))
    need, have = num_candidates(params.width, num_stop_ids), min(MAX_LOGPROBS, limits.vocab_size)
    if need <= have:
        return None
    return Never(
        "too_many_choices",
        f"{params.width} beams and {num_stop_ids} tokens that end them need the {need} most likely tokens after each "
        f"beam; the engine finds at most {have}",
    )


def _judge_size(request: Request, limits: Limits, num_pinned: int) -> Terms | Never:
    if request.pooling is not None:
        return _judge_embedding(request, limits, num_pinned)
    prompt_len, n, max_tokens = len(request.prompt), request.params.width, request.params.max_tokens
    room, groups = limits.max_model_len - prompt_len, KvGroups.of(limits)
    num_blocks = limits.num_blocks - num_pinned
    if room < 1:
        return Never(
            "context_length_exceeded",
            f"the prompt has {prompt_len} tokens; with at least 1 generated token that is more than the context of "
            f"{limits.max_model_len} (--max-model-len)",
        )
    if max_tokens is None:
        max_tokens = max(1, most_tokens(prompt_len, n, num_blocks, groups, room))
    num_generated = min(room, max_tokens)
    need = worst_case_blocks(prompt_len, num_generated, n, groups)
    if need <= num_blocks:
        return Terms(prompt_len + num_generated)
    return _pool_too_small(f"{prompt_len} tokens with {n} x {num_generated} generated ones", need, limits, num_pinned)


def _judge_embedding(request: Request, limits: Limits, num_pinned: int) -> Terms | Never:
    """Its prompt may be as long as the context: nothing is generated after it."""
    prompt_len = len(request.prompt)
    if prompt_len > limits.max_model_len:
        return Never(
            "context_length_exceeded",
            f"the prompt has {prompt_len} tokens, more than the context of {limits.max_model_len} (--max-model-len)",
        )
    need = worst_case_blocks(prompt_len, 1, 1, KvGroups.of(limits))
    if need > limits.num_blocks - num_pinned:
        return _pool_too_small(f"{prompt_len} tokens", need, limits, num_pinned)
    return Terms(prompt_len)


def _pool_too_small(what: str, need: int, limits: Limits, num_pinned: int) -> Never:
    pool = f"{limits.num_blocks}, {num_pinned} of them pinned" if num_pinned else f"{limits.num_blocks}"
    return Never(
        "pool_too_small",
        f"a prompt of {what} needs {need} KV blocks of {limits.block_size} tokens; the whole pool has {pool} "
        f"(--num-blocks, --kv-cache-memory-bytes)",
    )


@dataclass(slots=True)
class StepBudget:
    """What is left of one step. Made anew for each plan, spent while the plan is made, then thrown away."""

    tokens: int
    most_seqs: int = 0
    """Choices that may run in it."""
    seqs: int = 0
    """Choices that may still start to run."""
    partials: int = 0
    """Prompts that may still be left half computed."""
    blocks: int = 0
    """Blocks that newcomers may take: free ones, less those promised to prompts on their way."""
    num_preempted: int = 0
    """Running choices that lost their lease while this plan was made: then no blocks are left for newcomers."""

    def shortage(self) -> str:
        """What nobody can be given any more: every newcomer needs a token, a slot and a block. Empty: nothing."""
        return "tokens" if self.tokens < 1 else "seqs" if self.seqs < 1 else "blocks" if self.blocks < 1 else ""

    def try_admit(self, need: Need, *, keep_free: int) -> Admission | Later:
        """Spends what a choice needs, or says what it lacks and spends nothing. `keep_free` blocks stay untouched."""
        partial = need.num_tokens < need.num_left
        for resource, wanted, have in (
            ("seqs", need.num_seqs, self.seqs),
            ("tokens", max(1, need.num_tokens), self.tokens),
            ("partial_prefills", int(partial), self.partials),
            ("blocks", need.num_blocks, self.blocks - keep_free),
        ):
            if wanted > have:
                return Later(resource, wanted, have)
        self.seqs -= need.num_seqs
        self.tokens -= need.num_tokens
        self.partials -= partial
        self.blocks -= need.num_blocks
        return Admission(need.num_tokens)
