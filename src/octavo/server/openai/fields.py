"""Fields that clients know and this server does not honour yet: refused by name, unless the value asks for nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.server.openai.body import shown
from octavo.server.openai.errors import unsupported


@dataclass(frozen=True, slots=True)
class Known:
    """A field that is not honoured. `neutral` values ask for what happens anyway; null always is one."""

    why: str
    neutral: tuple[Any, ...] = ()

    def asks_for_nothing(self, value: Any) -> bool:
        return value is None or any(type(value) is type(each) and value == each for each in self.neutral)


_STRUCTURE = "it belongs into structured_outputs (as `json`, for a schema) or response_format"
_OLDER = "functions are called as tools: see tools and tool_choice"

NOT_YET: Mapping[str, Known] = {
    "suffix": Known("the model has no fill-in-the-middle tokens", ("",)),
    "prompt_embeds": Known("prompts are text or token ids"),
    "guided_decoding_backend": Known("there is one backend", ("auto", "guidance", "llguidance")),
    "guided_whitespace_pattern": Known("white space is bounded as it is"),
    "structural_tag": Known(_STRUCTURE),
    "grammar": Known(_STRUCTURE),
    "json_schema": Known(_STRUCTURE),
    "functions": Known(_OLDER, ([],)),
    "function_call": Known(_OLDER, ("none",)),
    "store": Known("nothing is stored", (False,)),
    "service_tier": Known("there is one tier: `auto` and `default` mean it", ("auto", "default")),
    "prompt_cache_retention": Known("cached prompts stay in memory while there is room", ("in_memory", "in-memory")),
    "reasoning_effort": Known("the chat template has no such setting", ("none",)),
    "include_reasoning": Known("answers have no separate reasoning", (True, False)),
    "thinking_token_budget": Known("answers have no separate reasoning"),
    "verbosity": Known("it is not available", ("medium",)),
    "modalities": Known("answers are text", (["text"],)),
    "audio": Known("answers are text"),
    "prediction": Known("predicted outputs are not available"),
    "web_search_options": Known("there is no web search"),
    "moderation": Known("there is no moderation"),
    "chat_template": Known("the template is the server's: see --chat-template; chat_template_kwargs are passed to it"),
    "mm_processor_kwargs": Known("prompts are text"),
    "media_io_kwargs": Known("prompts are text"),
    "logits_processors": Known("code cannot be sent with a request"),
    "logprob_token_ids": Known("it is not available: use logprobs"),
    "spaces_between_special_tokens": Known("text is exactly what the tokens spell", (True,)),
    "detokenize": Known("answers are text: return_token_ids adds the ids", (True,)),
    "kv_transfer_params": Known("there is no KV transfer between replicas yet"),
    "vllm_xargs": Known("there are no extensions"),
    "repetition_detection": Known("it is not available"),
    "add_special_tokens": Known("the chat template alone writes the control tokens of a chat", (False,)),
}
"""What chat and completions do not have. One that a request class has is honoured there, whatever stands here."""


NOT_FOR_EMBEDDINGS: Mapping[str, Known] = {
    "embed_dtype": Known("base64 is float32", ("float32",)),
    "endianness": Known("base64 is little-endian", ("little", "native")),
    "padding": Known("inputs are not padded", ("do_not_pad",)),
    **{name: NOT_YET[name] for name in ("chat_template", "mm_processor_kwargs", "media_io_kwargs", "prompt_embeds")},
}
"""What embeddings do not have."""


def check_known(extra: Mapping[str, Any], refused: Mapping[str, Known]) -> tuple[str, ...]:
    """The names of `extra` fields that nobody knows. Raises ApiError 400 for one that asks for what is not here."""
    for name in sorted(extra.keys() & refused.keys()):
        known = refused[name]
        if not known.asks_for_nothing(extra[name]):
            raise unsupported(name, f"{name} is {shown(extra[name])}, but {known.why}")
    return tuple(name for name in extra if name not in refused)
