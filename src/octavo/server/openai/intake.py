"""What endpoints do to a body before there is a job: read it, tell of unknown fields, check, cut prompts."""

import logging
from collections.abc import Sequence
from urllib.parse import quote

from octavo.server.exchange import Exchange
from octavo.server.openai.body import decode
from octavo.server.openai.errors import invalid
from octavo.server.openai.job import Prompt
from octavo.server.openai.params import Asked
from octavo.server.openai.schema import Model, Sampling, validate
from octavo.server.service import Service

log = logging.getLogger(__name__)

_MOST_NAMED = 20
MAX_BODY_BYTES = 8 << 20
"""Room for a million tokens, as text or as ids."""
MAX_CHOICES = 4096
"""In one answer: prompts times n."""


async def read(service: Service, exchange: Exchange, kind: type[Model]) -> Model:
    """The request's body as a `kind`; a long one is read in a thread. Raises ApiError 400, 413 or 415."""
    raw = await exchange.body(MAX_BODY_BYTES)
    return await service.off_loop(len(raw), lambda: validate(kind, decode(raw)))


def report_unknown(exchange: Exchange, names: Sequence[str]) -> None:
    """Tells client and operator of fields that nobody knows: in a header and in the log."""
    if names:
        shown = ",".join(quote(name[:64], safe="$._-[]", errors="replace") for name in names[:_MOST_NAMED])
        exchange.header("x-octavo-unknown-fields", shown)
        log.warning("%s %s: unknown fields: %s", exchange.id, exchange.path, shown)


def check_stream_options(body: Sampling) -> None:
    """Raises ApiError where there are options for a stream and no stream."""
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options is only allowed with stream: true", "stream_options")


def check_choices(service: Service, body: Sampling, num_prompts: int) -> None:
    """Raises ApiError 400 for more choices than may be: before there is any work for each of them."""
    n, most = body.n or 1, service.config.scheduler.max_num_seqs
    if n > most:
        raise invalid(f"n is {n}, and at most {most} choices run at once (--max-num-seqs)", "n", "too_many_choices")
    if n * num_prompts > MAX_CHOICES:
        message = f"n is {n} for each of {num_prompts} prompts; at most {MAX_CHOICES} choices in all are allowed"
        raise invalid(message, "n", "too_many_choices")


def most_tokens(service: Service, body: Sampling) -> int | None:
    """How many tokens a prompt can have at all; None where any number is cut to what fits."""
    return service.facts.capacity.max_model_len if body.truncate_prompt_tokens is None else None


def truncated(service: Service, body: Sampling, prompt: Prompt, asked: Asked) -> Prompt:
    """The prompt's last tokens, where the client asked for that: `truncate_prompt_tokens` of them, or all that fit."""
    count = body.truncate_prompt_tokens
    if count is None:
        return prompt
    if count == -1:
        context = service.facts.capacity.max_model_len
        count = max(1, context - min(asked.max_tokens or 1, context - 1))
    if count < 1:
        raise invalid(f"truncate_prompt_tokens must be an integer from 1, or -1, got {count}", "truncate_prompt_tokens")
    return prompt if len(prompt.ids) <= count else Prompt(prompt.ids[-count:])
