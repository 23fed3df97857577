"""POST /v1/completions"""

from collections.abc import Sequence
from typing import Any

from octavo.server.exchange import Exchange
from octavo.server.openai.answer import Delta
from octavo.server.openai.chunks import ChunkWire
from octavo.server.openai.intake import check_choices, check_stream, encoded, most_tokens, read, truncated
from octavo.server.openai.job import Job, make_job
from octavo.server.openai.logprobs import LogprobWriter, joined
from octavo.server.openai.params import Scores, asked_length
from octavo.server.openai.prompts import Prompt
from octavo.server.openai.respond import Gathered, respond
from octavo.server.openai.schema import CompletionRequest
from octavo.server.openai.structured import asked_structure
from octavo.server.service import Service

DEFAULT_MAX_TOKENS = 16
"""OpenAI's."""


async def complete(service: Service, exchange: Exchange) -> None:
    """Continues each prompt `n` times."""
    body = await read(service, exchange, CompletionRequest)
    check_stream(body)
    check_choices(service, body, len(body.prompt))
    structure = await asked_structure(service, body)
    asked = asked_length(body, DEFAULT_MAX_TOKENS)
    context = service.context(exchange.tenant)
    adds, most = body.add_special_tokens is not False, most_tokens(service, body)
    given = await encoded(service, exchange, body.prompt, "prompt", adds=adds, at_most=most)
    prompts = [truncated(context, body, prompt, asked) for prompt in given]
    job = make_job(service, exchange, body, prompts, asked, _scores(body), structure)
    await respond(exchange, body, job, ChunkWire(body, job, CompletionShape(service, body, job, prompts)))


def _scores(body: CompletionRequest) -> Scores:
    """An echoed prompt has the logprobs that the answer has."""
    echoed = body.logprobs if body.echo else None
    both = [count for count in (echoed, body.prompt_logprobs) if count is not None]
    low = min(both, default=0)
    return Scores(body.logprobs, (low if low < 0 else max(both)) if both else None)


class CompletionShape:
    """The legacy shape: text, and logprobs as parallel arrays."""

    id_prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"
    text_field: tuple[bytes, bytes] = (b'"text":', b"")

    def __init__(self, service: Service, body: CompletionRequest, job: Job, prompts: Sequence[Prompt]) -> None:
        self._tokenizer = service.tokenizer
        self._body = body
        self._job = job
        self._prompts = prompts
        self._begun: set[int] = set()
        self._lengths: dict[int, int] = {}
        """Characters of each choice's text so far; only with logprobs."""
        self._writer = LogprobWriter(
            service.tokenizer,
            as_ids=bool(body.return_tokens_as_token_ids),
            hide_special=body.skip_special_tokens is not False,
        )
        self._begins_plain = not (body.echo or body.return_token_ids or body.prompt_logprobs is not None)
        self._stays_plain = body.logprobs is None and not body.return_token_ids

    def plain(self, delta: Delta) -> bool:
        return self._stays_plain and not delta.finish and (self._begins_plain or delta.choice in self._begun)

    def chunk(self, delta: Delta) -> tuple[dict[str, Any], dict[str, Any]]:
        choice = Gathered()
        choice.add(delta)
        first = delta.choice not in self._begun
        self._begun.add(delta.choice)
        return self._choice(delta.choice, choice, first=first), {}

    def whole(self, index: int, choice: Gathered) -> dict[str, Any]:
        return self._choice(index, choice, first=True)

    def beside(self) -> dict[str, Any]:
        return {}

    def _choice(self, index: int, choice: Gathered, *, first: bool) -> dict[str, Any]:
        """A choice, or the part of one in a chunk; `first` is the part that the prompt's fields go with."""
        text = "".join(choice.text)
        logprobs = self._logprobs(index, choice, text, first)
        if first and self._body.echo:
            text = self._prompt_text(index) + text
        shaped: dict[str, Any] = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": choice.finish}
        if choice.finish:
            shaped["stop_reason"] = choice.stop
        if first:
            shaped |= self._of_prompt(index)
        if self._body.return_token_ids:
            shaped["token_ids"] = choice.token_ids
        return shaped

    def _of_prompt(self, index: int) -> dict[str, Any]:
        number = index // self._job.n
        fields: dict[str, Any] = {}
        if self._body.prompt_logprobs is not None:
            fields["prompt_logprobs"] = self._writer.prompt(self._job.answers[number].prompt_scores)
        if self._body.return_token_ids:
            fields["prompt_token_ids"] = self._prompts[number].ids
        return fields

    def _logprobs(self, index: int, choice: Gathered, text: str, first: bool) -> dict[str, Any] | None:
        if self._body.logprobs is None:
            return None
        begin = len(self._prompt_text(index)) if self._body.echo else 0
        start = self._lengths.get(index, begin)
        self._lengths[index] = start + len(text)
        answer = self._writer.legacy(choice.spelled, start)
        return joined(self._prompt_logprobs(index), answer) if first and self._body.echo else answer

    def _prompt_logprobs(self, index: int) -> dict[str, Any]:
        number = index // self._job.n
        scores = self._job.answers[number].prompt_scores
        return self._writer.legacy_prompt(self._prompts[number].ids, scores)

    def _prompt_text(self, index: int) -> str:
        """What `echo` puts before the answer: the text that came, or what the ids spell."""
        prompt = self._prompts[index // self._job.n]
        if prompt.text is not None:
            return prompt.text
        return self._tokenizer.decode(prompt.ids, skip_special_tokens=self._body.skip_special_tokens is not False)
