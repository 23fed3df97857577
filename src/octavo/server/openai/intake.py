"""What endpoints do to a body before there is a job: read it, tell of unknown fields, check, cut prompts."""

import logging
from collections.abc import Collection, Sequence, Sized
from urllib.parse import quote

from octavo.config.schema import LimitsConfig
from octavo.server.exchange import Exchange
from octavo.server.openai.body import decode, shown
from octavo.server.openai.embedding_schema import EmbeddingRequest
from octavo.server.openai.errors import ApiError, invalid
from octavo.server.openai.fields import check_known
from octavo.server.openai.params import Asked
from octavo.server.openai.prompts import Prompt, cut
from octavo.server.openai.schema import Body, Model, Sampling, validate
from octavo.server.service import Service

log = logging.getLogger(__name__)

_MOST_NAMED = 20
_COUNTED = {
    "prompt": "max_prompts",
    "messages": "max_messages",
    "input": "max_messages",
    "stop": "max_stop_strings",
    "stop_sequences": "max_stop_strings",
    "bad_words": "max_bad_words",
    "logit_bias": "max_logit_bias",
}
"""Fields that hold many of something -> the setting that says how many."""


async def read(service: Service, exchange: Exchange, kind: type[Model]) -> Model:
    """The request's body as a `kind`, for a model that is served; a long one is read in a thread.

    What nobody knows in it is reported. Raises ApiError 400, also for what `kind` refuses, 404, 413 or 415.
    """
    raw = await exchange.body(service.config.limits.max_body_bytes)
    body = await service.off_loop(len(raw), lambda: validate(kind, decode(raw)))
    check_counts(service.config.limits, body)
    report_unknown(service, exchange, check_known(body.model_extra or {}, kind.refused))
    service.check_model(body.model)
    return body


def check_counts(limits: LimitsConfig, body: Body) -> None:
    """Raises ApiError 400 for more prompts, messages and so on than one request may bring."""
    for field, setting in {**_COUNTED, **body.counted}.items():
        value = getattr(body, field, None)
        if isinstance(value, list | dict):
            check_count(limits, field, value, setting)


def check_count(limits: LimitsConfig, field: str, value: Sized, setting: str) -> None:
    """Raises ApiError 400 where the field has more entries than the setting allows."""
    most = getattr(limits, setting)
    if most is not None and len(value) > most:
        flag = "--" + setting.replace("_", "-")
        raise invalid(f"{field} has {len(value):,} entries, at most {most:,} are allowed ({flag})", field)


def report_unknown(service: Service, exchange: Exchange, names: Sequence[str]) -> None:
    """Tells client and operator of fields that nobody knows: in a header and in the log.

    Raises ApiError 400 where the server is strict.
    """
    if not names:
        return
    if service.config.server.strict:
        name = names[0]
        message = f"{shown(name)} is not a known field, and this server runs with --strict"
        raise ApiError(400, message, param=name, code="unknown_parameter")
    told = ",".join(quote(name[:64], safe="$._-[]", errors="replace") for name in names[:_MOST_NAMED])
    exchange.header("x-octavo-unknown-fields", told)
    log.warning("%s %s: unknown fields: %s", exchange.id, exchange.path, told)


def report_controls(service: Service, exchange: Exchange, names: Collection[str]) -> None:
    """Tells client and operator of control tokens whose text a prompt has, where it is not read as such.

    Tools that fill templates themselves, for a chat or around a cursor, mean them, and get answers to something else.
    """
    if names and not service.tokenizer.trusts_texts:
        told = ",".join(quote(name, safe="<|>/_-[]") for name in sorted(names)[:_MOST_NAMED])
        exchange.header("x-octavo-controls-as-text", told)
        log.warning("%s %s: read as text, without --allow-special-tokens-in-text: %s", exchange.id, exchange.path, told)


async def encoded(
    service: Service,
    exchange: Exchange,
    given: Sequence[str] | Sequence[list[int]],
    field: str,
    *,
    adds: bool,
    at_most: int | None,
) -> list[Prompt]:
    """The prompts of `field` as ids: of texts `at_most` so many, with the tokenizer's BOS where `adds`.

    Says what in them is only text. Raises ApiError 400 for an empty one, one that is far too long, and an unknown id.
    """

    def from_text(text: str) -> Prompt:
        ids = service.tokenizer.encode(text, add_special_tokens=adds, at_most=at_most)
        if not ids:
            message = f"{field} is empty, and this model has no BOS to begin with: give at least one character"
            raise invalid(message, field)
        return Prompt(tuple(ids), text)

    def encode() -> tuple[list[Prompt], frozenset[str]]:
        texts = [each for each in given if isinstance(each, str)]
        prompts = [from_text(each) if isinstance(each, str) else _from_ids(service, each, field) for each in given]
        return prompts, frozenset[str]().union(*map(service.tokenizer.controls.named_in, texts))

    prompts, controls = await service.off_loop(sum(map(len, given)), encode)
    report_controls(service, exchange, controls)
    return prompts


def _from_ids(service: Service, ids: Sequence[int], field: str) -> Prompt:
    limit = service.facts.capacity.vocab_size
    if min(ids) < 0 or max(ids) >= limit:
        bad = next(token for token in ids if not 0 <= token < limit)
        raise invalid(f"{field} has the token id {bad}, but ids are from 0 to {limit - 1}", field)
    return Prompt(tuple(ids))


def check_stream(body: Sampling) -> None:
    """Raises ApiError where there are options for a stream and no stream, or a stream of what is chosen at its end."""
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options is only allowed with stream: true", "stream_options")
    if body.stream and not body.use_beam_search and (body.best_of or 0) > (body.n or 1):
        message = (
            f"best_of is {body.best_of} and n is {body.n or 1}: which samples are the best is known when all are "
            f"complete, so they cannot be streamed; with use_beam_search the results can, once they are known"
        )
        raise invalid(message, "best_of")


def check_choices(service: Service, body: Sampling, num_prompts: int) -> None:
    """Raises ApiError 400 for more choices than may be: before there is any work for each of them."""
    name, width = ("best_of", body.best_of) if body.best_of is not None else ("n", body.n or 1)
    most = service.config.scheduler.max_num_seqs
    if width > most:
        message = f"{name} is {width}, and at most {most} choices run at once (--max-num-seqs)"
        raise invalid(message, name, "too_many_choices")
    most = service.config.limits.max_choices
    if width * num_prompts > most:
        message = (
            f"{name} is {width} for each of {num_prompts} prompts, at most {most:,} choices are allowed (--max-choices)"
        )
        raise invalid(message, name, "too_many_choices")


def most_tokens(service: Service, body: Sampling | EmbeddingRequest) -> int | None:
    """How many tokens a prompt can have at all; None where any number is cut to what fits."""
    return service.facts.capacity.max_model_len if body.truncate_prompt_tokens is None else None


def truncated(context: int, body: Sampling, prompt: Prompt, asked: Asked) -> Prompt:
    """The prompt's last tokens, where the client asked for that: so many, or all that `context` has room for."""
    room = max(1, context - min(asked.max_tokens or 1, context - 1))
    return cut(prompt, body.truncate_prompt_tokens, room)
