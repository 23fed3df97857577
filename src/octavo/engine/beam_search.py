"""What `LLM.beam_search` takes and gives, in the shape of vLLM's; the search itself is a request like others."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from octavo.core.sampling import EarlyStopping, SamplingParams
from octavo.core.types import FinishReason, TokenId
from octavo.engine.outputs import CompletionOutput, Distribution, RequestOutput

if TYPE_CHECKING:  # an engine process has this module, but no text
    from octavo.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """How to search. Raises ParameterError, where it is used, for a value outside its range."""

    beam_width: int
    """Beams that go on side by side, and sequences that come out."""
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    """Nothing is drawn: only 0 and 1 are allowed, and mean the same."""
    length_penalty: float = 1.0
    """A sequence scores its sum of logprobs / its number of generated tokens ** this."""
    include_stop_str_in_output: bool = False
    """Whether the token that ended a sequence is part of it."""
    early_stopping: EarlyStopping = False
    """See `octavo.core.beams.BeamRules`."""

    def sampling_params(self) -> SamplingParams:
        """The same, as a request says it."""
        return SamplingParams(
            use_beam_search=True,
            n=self.beam_width,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            temperature=self.temperature,
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
            logprobs=0,
        )


@dataclass(slots=True)
class BeamSearchSequence:
    """One sequence that was found."""

    tokens: list[TokenId]
    """The prompt's and the generated ones."""
    logprobs: list[Distribution]
    """One for each generated token, the one that ended it too."""
    cum_logprob: float = 0.0
    """Their sum."""
    text: str | None = None
    """The text of `tokens`, without control tokens."""
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    """The token that ended it, where one did."""


@dataclass(slots=True)
class BeamSearchOutput:
    """What was found for one prompt, best first."""

    sequences: list[BeamSearchSequence] = field(default_factory=list)


def beams_of(output: RequestOutput, params: BeamSearchParams, tokenizer: "Tokenizer") -> BeamSearchOutput:
    """A finished request, as a beam search gives it back."""

    def sequence(found: CompletionOutput) -> BeamSearchSequence:
        ids, stopped = found.token_ids, found.finish_reason == FinishReason.STOP.value
        shown = ids[:-1] if stopped and not params.include_stop_str_in_output else ids
        tokens = [*output.prompt_token_ids, *shown]
        return BeamSearchSequence(
            tokens=tokens,
            logprobs=found.logprobs or [],
            cum_logprob=found.cumulative_logprob or 0.0,
            text=tokenizer.decode(tokens, skip_special_tokens=True),
            finish_reason=found.finish_reason,
            stop_reason=ids[-1] if stopped else None,
        )

    return BeamSearchOutput([sequence(found) for found in output.outputs])
