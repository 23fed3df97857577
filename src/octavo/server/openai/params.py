"""The fields of a request -> SamplingParams and what else the engine is told about it."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.config.tenants import HIGHEST_PRIORITY, LOWEST_PRIORITY, NOBODY, PRIVATE, Tenant
from octavo.core.sampling import ParameterError, SamplingParams, StructuredOutput, check_token_ids
from octavo.server.openai.errors import ApiError, bad_parameter, invalid, too_long
from octavo.server.openai.schema import Sampling


@dataclass(frozen=True, slots=True)
class Asked:
    """How long an answer may be: `max_tokens` as the client gave it, or the default; None: up to the context."""

    max_tokens: int | None
    explicit: bool
    prompt_only: bool = False
    """`echo` with 0 tokens: the engine must generate one, and the client does not see it."""

    def limit(
        self, prompt_len: int, max_model_len: int, param: str, *, strict: bool = False, flag: str = "--max-model-len"
    ) -> int:
        """The most tokens to generate after such a prompt. Raises ApiError 400 where the context has no room left.

        `strict`: also where it has less than the client asked for. `flag` is what set the context's length.
        """
        room = max_model_len - prompt_len
        if room < 1 or (strict and self.explicit and self.max_tokens is not None and self.max_tokens > room):
            raise self._too_long(prompt_len, max_model_len, param, flag)
        if self.prompt_only:
            return 1
        return room if self.max_tokens is None else min(self.max_tokens, room)

    def _too_long(self, prompt_len: int, max_model_len: int, param: str, flag: str) -> ApiError:
        why = f" ({flag}), but the prompt has {prompt_len} and {self._wish}; truncate_prompt_tokens cuts the prompt"
        return too_long(max_model_len, why, param)

    @property
    def _wish(self) -> str:
        if self.prompt_only:
            return "needs room for 1 more even where none is to be answered, since the engine computes one"
        return f"{self.max_tokens} for the answer were asked for" if self.explicit else "an answer needs 1 or more"


def asked_length(body: Sampling, default: int | None) -> Asked:
    """Raises ApiError where the two names of the limit are given and differ."""
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise invalid(f"max_tokens ({old}) and max_completion_tokens ({new}) are one field: give one", "max_tokens")
    length = old if new is None else new
    if length is None:
        return Asked(default, False)
    return Asked(length, True, prompt_only=length == 0 and bool(body.echo))


_SAME = (
    "temperature",
    "top_p",
    "typical_p",
    "min_p",
    "n",
    "best_of",
    "use_beam_search",
    "length_penalty",
    "early_stopping",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "skip_special_tokens",
)
"""Fields that SamplingParams has under the same name and with the same meaning."""

_FORMS = ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "response_format")
"""Fields of which one says what form the answer has; only the last may be there and say nothing."""


def check_number_of_ids(body: Sampling, vocab_size: int) -> None:
    """Raises ApiError 400 for a list of more token ids than there are: before anything is done with each."""
    for name in ("stop_token_ids", "logit_bias", "allowed_token_ids"):
        count = len(getattr(body, name) or ())
        if count > vocab_size:
            raise invalid(f"{name} has {count} token ids, but the vocabulary has {vocab_size}", name)


@dataclass(frozen=True, slots=True)
class Scores:
    """Which logprobs are computed, and the field that asked for those of the answer."""

    logprobs: int | None = None
    prompt_logprobs: int | None = None
    field: str = "logprobs"


def sampling_params(
    body: Sampling,
    max_tokens: int,
    vocab_size: int,
    eos_token_ids: Sequence[int],
    scores: Scores,
    structure: StructuredOutput | None = None,
) -> SamplingParams:
    """Raises ApiError 400 that names the field for whatever is outside its range or outside the vocabulary."""
    check_number_of_ids(body, vocab_size)
    given = {name: getattr(body, name) for name in _SAME}
    fields: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    fields |= {"max_tokens": max_tokens, "logprobs": scores.logprobs, "prompt_logprobs": scores.prompt_logprobs}
    fields["structured_outputs"] = structure
    if body.top_k is not None:
        fields["top_k"] = min(body.top_k, vocab_size)
    try:
        params = SamplingParams(**fields)
        check_token_ids(params, vocab_size)
    except ParameterError as error:
        raise bad_parameter(error, _names(body, scores).get(error.field, error.field)) from None
    _check_drawable(params, vocab_size, eos_token_ids)
    return params


def _check_drawable(params: SamplingParams, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
    """Raises ApiError where each token that may come would end the answer, and none may yet."""
    if not params.min_tokens:
        return
    ending = set(params.stop_token_ids).union(() if params.ignore_eos else eos_token_ids)
    allowed = range(vocab_size) if params.allowed_token_ids is None else params.allowed_token_ids
    if len(ending) >= len(allowed) and ending.issuperset(allowed):
        message = f"min_tokens is {params.min_tokens}, but each token that is allowed would end the answer"
        raise invalid(message, "min_tokens")


def _names(body: Sampling, scores: Scores) -> Mapping[str, str]:
    """SamplingParams' names -> those that the client used."""
    length = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    forms = (name for name in _FORMS if getattr(body, name) is not None)
    return {"max_tokens": length, "logprobs": scores.field, "structured_outputs": next(forms, "structured_outputs")}


def namespace(tenant: Tenant, cache_salt: str | None) -> bytes:
    """Whose cached prompts a request may share: those of its tenant, or of the tenant's group, with the same salt.

    What a client sends can only make this narrower: a digest of the tenant's part comes before it.
    """
    space = _space(tenant)
    if cache_salt is None:
        return space
    if not cache_salt:
        raise invalid("cache_salt must be a non-empty string or null", "cache_salt")
    return _digest(space + b"salt:" + cache_salt.encode())


def _space(tenant: Tenant) -> bytes:
    if tenant is NOBODY:
        return b""
    group = tenant.rules.cache
    return _digest(f"tenant:{tenant.name}".encode() if group == PRIVATE else f"group:{group}".encode())


def _digest(whose: bytes) -> bytes:
    return hashlib.sha256(whose).digest()[:16]


def checked_priority(priority: int | None, policy: str, tenant: Tenant) -> int:
    """The request's priority, or its tenant's where it gives none.

    Raises ApiError where the scheduler does not look at it, or the tenant may not ask for so much.
    """
    if priority is None:
        return tenant.rules.priority
    if priority and policy != "priority":
        raise invalid(f"priority is {priority}, but the server runs with --scheduling-policy {policy}", "priority")
    if not HIGHEST_PRIORITY <= priority <= LOWEST_PRIORITY:
        raise invalid(f"priority must be an integer of 32 bits, got {priority}", "priority")
    if priority < tenant.rules.most_urgent:
        message = f"priority is {priority}, but {tenant.name} may give no lower number than {tenant.rules.most_urgent}"
        raise invalid(f"{message} (highest_priority of the tenant)", "priority")
    return priority
