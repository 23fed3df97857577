"""The `code` of an error: a word for programs. All there are, with the statuses that they come with."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Code:
    """When an error has this code."""

    statuses: tuple[int, ...]
    meaning: str


CODES: Mapping[str, Code] = {
    "malformed_request": Code((400,), "these bytes are no HTTP/1.1 request; the connection is closed"),
    "invalid_json": Code((400,), "the body is no JSON object, or one that is not usable: a name twice, too deep"),
    "invalid_type": Code((400,), "the field `param` has a value of the wrong type"),
    "invalid_value": Code((400,), "the field `param` has a value that it cannot have"),
    "missing_required_parameter": Code((400,), "the field `param` must be there"),
    "unknown_parameter": Code((400,), "nobody knows the field `param`; at the top of a body only with --strict"),
    "unsupported_parameter": Code((400,), "the field `param` is known, and what it asks for is not available here"),
    "context_length_exceeded": Code((400,), "prompt and answer do not fit the context"),
    "pool_too_small": Code((400,), "prompt and answer do not fit the KV cache, not even alone"),
    "too_many_choices": Code((400,), "`n` or `best_of` asks for more choices than may be"),
    "empty_prompt": Code((400,), "the prompt has no tokens"),
    "token_out_of_range": Code((400,), "a token id is not in the vocabulary"),
    "chat_template_error": Code((400,), "the chat template refuses the messages; its own words are in the message"),
    "invalid_structured_outputs": Code((400,), "a schema, expression or grammar cannot be compiled within the limits"),
    "structured_outputs": Code((400,), "the form of the answer cannot be followed any further"),
    "nothing_allowed": Code((400,), "the request's fields together leave no token that may be drawn"),
    "request_exceeds_quota": Code((400,), "the request may need more tokens than its tenant ever has at once"),
    "disabled": Code((400,), "there is nothing to pin: the prefix cache is off"),
    "shorter_than_block": Code((400,), "what is to be pinned is less than a block"),
    "invalid_api_key": Code((401,), "a key is needed, and the one sent is missing or wrong"),
    "operator_only": Code((403,), "this path tells of others, and the key is a tenant's"),
    "unknown_url": Code((404,), "there is nothing at this path"),
    "model_not_found": Code((404,), "this model is not served here"),
    "request_not_found": Code((404,), "no request is remembered under this id, or it is somebody else's"),
    "pin_not_found": Code((404,), "there is no such pin, or it is somebody else's"),
    "method_not_allowed": Code((405,), "the path is known, and takes other methods: the header `allow` has them"),
    "request_timeout": Code(
        (408, 504), "408: the request did not come in time; 504: the answer was not complete in time"
    ),
    "duplicate_id": Code((400, 409), "there is a request or pin with this id"),
    "cache_in_use": Code((409,), "the prefix cache cannot be emptied while requests hold blocks"),
    "pin_quota_exceeded": Code((409,), "the tenant may not pin so many blocks (--pin-quota)"),
    "no_room_to_pin": Code((409, 503), "the blocks are not there to be pinned; 503: for the moment"),
    "body_too_large": Code((413,), "the body is longer than --max-body-bytes"),
    "unsupported_media_type": Code((415,), "the body does not say that it is JSON, or it is compressed"),
    "rate_limit_exceeded": Code((429,), "a quota of the tenant is used up; `retry-after` says for how long"),
    "headers_too_large": Code((431,), "the request line with its headers is too long"),
    "generation_failed": Code((500,), "the request was sound, and the engine could not answer it; the log says why"),
    "internal_error": Code((500,), "something went wrong in the server; the log says what"),
    "loading": Code((503,), "the model is still loading"),
    "queue_full": Code((503,), "as many requests as may run and wait already (--max-num-queued-reqs)"),
    "queue_tokens_full": Code((503,), "as many tokens as may wait already (--max-num-queued-tokens)"),
    "shutting_down": Code((503,), "the server is about to end, and takes nothing new"),
    "cancelled": Code((503,), "the server cancelled the request"),
    "too_many_readers": Code((503,), "as many follow the events as may"),
    "engine_dead": Code((503,), "the engine has died"),
    "engine_stuck": Code((503,), "the engine has shown no sign of life for too long"),
}
