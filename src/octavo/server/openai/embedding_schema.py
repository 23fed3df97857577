"""The fields of POST /v1/embeddings, OpenAI's and vLLM's."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import PlainValidator, WithJsonSchema

from octavo.config.tenants import HIGHEST_PRIORITY, LOWEST_PRIORITY
from octavo.server.openai.fields import NOT_FOR_EMBEDDINGS, Known
from octavo.server.openai.schema import PROMPT_SCHEMA, Body, Objects, ShortText, optional, prompts


def _inputs(value: object) -> list[str] | list[list[int]] | None:
    return None if value is None else prompts(value)


_SCHEMA = {"anyOf": [*PROMPT_SCHEMA["anyOf"], {"type": "null"}]}
Inputs = Annotated[list[str] | list[list[int]] | None, PlainValidator(_inputs), WithJsonSchema(_SCHEMA)]


class EmbeddingRequest(Body):
    """POST /v1/embeddings: `input`, or `messages`."""

    refused: ClassVar[Mapping[str, Known]] = NOT_FOR_EMBEDDINGS
    counted: ClassVar[Mapping[str, str]] = {"input": "max_prompts"}

    input: Inputs = optional(
        "What to embed: one text or many (--max-prompts), as text or as token ids.", "must be there, without messages"
    )
    messages: Objects | None = optional("A conversation to embed instead, put through the chat template.")
    encoding_format: Literal["float", "base64"] | None = optional(
        "Each vector as an array of numbers, or as float32, little-endian, in base64.", "float"
    )
    dimensions: int | None = optional(
        "Keep the first so many numbers of each vector, at most the model's hidden size; then it gets its length.",
        "all, or what --pooler-config says",
        minimum=1,
    )
    use_activation: bool | None = optional("Whether vectors have the length 1.", "true, or what --pooler-config says")
    normalize: bool | None = optional("The older name of use_activation.")
    add_special_tokens: bool | None = optional("Add the tokenizer's BOS to a text.", "true, and false for messages")
    truncate_prompt_tokens: int | None = optional(
        "Keep only this many tokens of each input; -1: as many as fit.", "an input that is too long: 400"
    )
    truncation_side: Literal["left", "right"] | None = optional(
        "Where truncate_prompt_tokens cuts: `left` keeps the last tokens, `right` the first.", "left"
    )
    add_generation_prompt: bool | None = optional("For messages.", False)
    continue_final_message: bool | None = optional("For messages.", False)
    chat_template_kwargs: dict[str, Any] | None = optional("For messages.")
    cache_salt: str | None = optional("Share cached prompts only with requests of the same salt. Not empty.")
    priority: int | None = optional(
        "Lower goes first; needs --scheduling-policy priority if not 0.",
        "the tenant's, or 0",
        minimum=HIGHEST_PRIORITY,
        maximum=LOWEST_PRIORITY,
    )
    request_id: ShortText | None = optional("Becomes part of the answer's id.", "drawn")
    user: str | None = optional("No effect: nothing is recorded about users.")
