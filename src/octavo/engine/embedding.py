"""Embeddings: what is asked of one, and how a sum of hidden states becomes it. Pure; the same for HTTP and offline."""

# Callers may pass anything, whatever they promised: types are checked at run time too.
# pyright: reportUnnecessaryIsInstance=false

import math
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from octavo.core.events import Admitted, Embedded, Event, Finished
from octavo.core.misses import Miss
from octavo.core.parameter import ParameterError
from octavo.core.types import FinishReason, TokenId
from octavo.engine.outputs import GenerationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from octavo.config.pooler import Pooler
    from octavo.core.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingParams:
    """What an embedding looks like, in vLLM's words. None: as `--pooler-config` says."""

    dimensions: int | None = None
    """How many numbers are kept, the first."""
    use_activation: bool | None = None
    """Is it of length 1?"""


@dataclass(frozen=True, slots=True)
class Form:
    """The same, with all that was left open decided."""

    dimensions: int
    unit: bool


def form_of(params: PoolingParams, pooler: "Pooler", hidden_size: int) -> Form:
    """Raises ParameterError for `dimensions` that the model does not have."""
    asked = pooler.dimensions if params.dimensions is None else params.dimensions
    wanted = hidden_size if asked is None else asked
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not 1 <= wanted <= hidden_size:
        raise ParameterError("dimensions", wanted, f"an integer from 1 to {hidden_size}, the model's hidden size")
    unit = pooler.use_activation if params.use_activation is None else params.use_activation
    if not isinstance(unit, bool):
        raise ParameterError("use_activation", unit, "true, false or null")
    return Form(wanted, unit)


def vector(event: Embedded, form: Form) -> "array[float]":
    """The embedding, in float32: the mean, cut, and then of length 1 where that is asked for. (No vector of zeros is.)

    What is cut away does not count in the length, whose sum is without rounding: nothing depends on its order.
    """
    sums = memoryview(event.total).cast("d")[: form.dimensions]
    mean = [total / event.num_tokens for total in sums]
    length = math.sqrt(math.fsum([value * value for value in mean])) if form.unit else 1.0
    return array("f", [value / length for value in mean] if length else mean)


@dataclass(slots=True)
class EmbeddingOutput:
    """One vector."""

    embedding: list[float] = field(default_factory=list)

    @property
    def hidden_size(self) -> int:
        """How many numbers it has."""
        return len(self.embedding)


@dataclass(slots=True)
class EmbeddingRequestOutput:
    """One prompt and its embedding, in the shape of vLLM's."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[TokenId]
    finished: bool = False
    num_cached_tokens: int = 0
    cache_miss: Miss | None = None
    """Why more than the last prompt token had to be computed; None where no more had to be."""


class EmbeddingGathering:
    """Turns the events of one request into its EmbeddingRequestOutput."""

    def __init__(self, request: "Request", form: Form) -> None:
        self._form = form
        self.output = EmbeddingRequestOutput(request.request_id, EmbeddingOutput(), list(request.prompt))

    @property
    def over(self) -> bool:
        """The engine has ended it."""
        return self.output.finished

    def stopped_here(self) -> list[int]:
        """Nothing is generated, so no stop string ends anything."""
        return []

    def take(self, events: "Sequence[Event]") -> None:
        """Takes the request's events of one step. Raises GenerationError where the request failed."""
        for event in events:
            if isinstance(event, Embedded):
                self.output.outputs.embedding = vector(event, self._form).tolist()
            elif isinstance(event, Admitted) and not event.resumed:
                self.output.num_cached_tokens, self.output.cache_miss = event.cached_tokens, event.miss
            elif isinstance(event, Finished):
                if event.reason is FinishReason.ERROR:
                    raise GenerationError(f"request {self.output.request_id}: {event.message}")
                self.output.finished = True
