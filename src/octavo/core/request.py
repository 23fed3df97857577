"""Request: what was asked, a value that never changes; and the life cycle of its choices, as one transition table."""

from dataclasses import dataclass, field

from octavo.core.sampling import SamplingParams
from octavo.core.types import RequestId, TokenId


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One submission: a prompt, and `params.n` choices that continue it."""

    request_id: RequestId
    prompt: tuple[TokenId, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    """Resolved by whoever submits: `params.seed` or one drawn at random. 0 <= seed < 2**64."""
    arrival_s: float = 0.0
    priority: int = 0
    """Lower goes first, under `--scheduling-policy priority`."""
    namespace: bytes = b""
    """Whose cache this request may share: part of every block key. Tenant and salt, digested."""
