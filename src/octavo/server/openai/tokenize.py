"""POST /tokenize, POST /detokenize and GET /tokenizer_info, in vLLM's and llama.cpp's dialects."""

from typing import Any

import msgspec

from octavo.server.exchange import Exchange
from octavo.server.openai.chat import chat_ids, chat_messages
from octavo.server.openai.errors import invalid
from octavo.server.openai.intake import read
from octavo.server.openai.schema import DetokenizeRequest, TextRequest, TokenizeRequest
from octavo.server.service import Service


async def tokenize(service: Service, exchange: Exchange) -> None:
    """The ids of a text, or of a conversation as the model reads it."""
    body = await read(service, exchange, TokenizeRequest)
    content = body.content if body.prompt is None else body.prompt
    if body.content is not None and (body.prompt is not None or body.messages is not None):
        raise invalid("give one of prompt (or content) and messages", "content")
    asked = {
        "prompt": content,
        "add_special_tokens": _one_of("add_special_tokens", body.add_special_tokens, body.add_special),
        "parse_special": _reads_controls(service, body.parse_special, content),
    }
    ids = await ids_of(service, exchange, body.model_copy(update=asked))
    answer: dict[str, Any] = {
        "count": len(ids),
        "max_model_len": service.facts.capacity.max_model_len,
        "tokens": ids,
    }
    if body.return_token_strs:
        spell = service.tokenizer.token_text
        answer["token_strs"] = await service.off_loop(len(ids), lambda: [spell(token) for token in ids])
    await exchange.reply(200, msgspec.json.encode(answer))


def _reads_controls(service: Service, asked: bool | None, content: str | None) -> bool | None:
    """A text that is one control token, whole, is that token: clients ask for the id of a BOS or EOS so."""
    return True if asked is None and content is not None and content in service.tokenizer.controls else asked


async def ids_of(service: Service, exchange: Exchange, body: TextRequest) -> list[int]:
    """The ids of the one text, conversation or list that was given. Raises ApiError 400."""
    names = [name for name in ("prompt", "messages", "token_ids") if name in type(body).model_fields]
    given = [name for name in names if getattr(body, name) is not None]
    if len(given) != 1:
        raise invalid(f"give one of {' and '.join(names)}", given[1] if given else "prompt")
    _check_about(body, given[0])
    if body.messages is not None:
        messages = await chat_messages(service, exchange, body.messages, body.chat_template_kwargs)
        return await chat_ids(service, exchange, body, messages)
    text, adds = body.prompt, body.add_special_tokens is not False
    if text is None:
        given_ids = getattr(body, given[0])
        return await service.off_loop(len(given_ids), lambda: checked_ids(service, given_ids, given[0]))

    def encode() -> list[int]:
        return service.tokenizer.encode(text, add_special_tokens=adds, parse_special=body.parse_special)

    return await service.off_loop(len(text), encode)


_ABOUT = {
    "messages": ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools"),
    "prompt": ("add_special_tokens", "parse_special"),
}
"""What was given -> the fields that say how it is read."""


def _check_about(body: TextRequest, given: str) -> None:
    """Raises ApiError 400 for a field that asks for something about what was not given."""
    for about, names in _ABOUT.items():
        for name in names:
            if about != given and getattr(body, name):
                raise invalid(f"{name} says how {about} is read, and {given} was given instead", name)


def checked_ids(service: Service, ids: list[int], param: str) -> list[int]:
    """Raises ApiError 400 for an id outside the vocabulary."""
    limit = service.facts.capacity.vocab_size
    for index, token in enumerate(ids):
        if not 0 <= token < limit:
            raise invalid(f"{param}[{index}] is {token}, but ids are from 0 to {limit - 1}", f"{param}[{index}]")
    return ids


def _one_of(name: str, first: bool | None, second: bool | None) -> bool | None:
    """A field with two names."""
    if first is not None and second is not None and first != second:
        raise invalid(f"{name} is given twice, and differs", name)
    return second if first is None else first


async def detokenize(service: Service, exchange: Exchange) -> None:
    """The text that ids spell, control tokens included."""
    body = await read(service, exchange, DetokenizeRequest)

    def decode() -> str:
        return service.tokenizer.decode(checked_ids(service, body.tokens, "tokens"), skip_special_tokens=False)

    text = await service.off_loop(len(body.tokens), decode)
    await exchange.reply(200, msgspec.json.encode({"prompt": text, "content": text}))


async def tokenizer_info(service: Service, exchange: Exchange) -> None:
    """What a client needs to prepare prompts itself: control tokens and the chat template."""
    template = service.template
    info = {
        "tokenizer_class": "octavo",
        "model_max_length": service.facts.capacity.max_model_len,
        "vocab_size": service.tokenizer.vocab_size,
        "add_bos_token": service.tokenizer.adds_bos,
        "chat_template": None if template is None else template.source,
        **service.tokenizer.special_tokens,
    }
    await exchange.reply(200, msgspec.json.encode(info))
