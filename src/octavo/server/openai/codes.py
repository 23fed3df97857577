"""The `code` of an error: a word for programs. All there are, with the statuses that they come with, and what to do."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Code:
    """When an error has this code."""

    statuses: tuple[int, ...]
    meaning: str
    remedy: str
    """What whoever gets it can do, or the operator."""


CODES: Mapping[str, Code] = {
    "malformed_request": Code(
        (400,),
        "these bytes are no HTTP/1.1 request; the connection is closed",
        "send HTTP/1.1; look for a proxy that speaks HTTP/2 or TLS to this port",
    ),
    "invalid_json": Code(
        (400,),
        "the body is no JSON object, or one that is not usable: a name twice, too deep",
        "send one JSON object in UTF-8; the message says at which byte it is none",
    ),
    "invalid_type": Code(
        (400,),
        "the field `param` has a value of the wrong type",
        "send the type that the message names; docs/reference/api.md has each field",
    ),
    "invalid_value": Code(
        (400,),
        "the field `param` has a value that it cannot have",
        "send a value within the range that the message gives",
    ),
    "missing_required_parameter": Code(
        (400,),
        "the field `param` must be there",
        "add the field",
    ),
    "unknown_parameter": Code(
        (400,),
        "nobody knows the field `param`; at the top of a body only with --strict",
        "correct its name or leave it out; without --strict such fields are only told in a header",
    ),
    "unsupported_parameter": Code(
        (400,),
        "the field `param` is known, and what it asks for is not available here",
        "leave it out, or send null; the message says what is there instead",
    ),
    "context_length_exceeded": Code(
        (400,),
        "prompt and answer do not fit the context",
        "shorten the prompt, lower max_tokens, send truncate_prompt_tokens, or raise --max-model-len",
    ),
    "pool_too_small": Code(
        (400,),
        "prompt and answer do not fit the KV cache, not even alone",
        "lower max_tokens or n, or raise --num-blocks or --kv-cache-memory-bytes",
    ),
    "too_many_choices": Code(
        (400,),
        "`n` or `best_of` asks for more choices than may be",
        "ask for fewer, or raise --max-num-seqs or --max-choices, whichever the message names",
    ),
    "empty_prompt": Code(
        (400,),
        "the prompt has no tokens",
        "send at least one token",
    ),
    "token_out_of_range": Code(
        (400,),
        "a token id is not in the vocabulary",
        "make token ids with this model's tokenizer (POST /tokenize)",
    ),
    "chat_template_error": Code(
        (400,),
        "the chat template refuses the messages; its own words are in the message",
        "order roles as the template wants them, or give another template with --chat-template",
    ),
    "invalid_structured_outputs": Code(
        (400,),
        "a schema, expression or grammar cannot be compiled within the limits",
        "make the schema or grammar smaller, or correct what the message quotes",
    ),
    "structured_outputs": Code(
        (400,),
        "the form of the answer cannot be followed any further",
        "loosen the form, or allow more tokens; the message says what cannot follow",
    ),
    "nothing_allowed": Code(
        (400,),
        "the request's fields together leave no token that may be drawn",
        "loosen allowed_token_ids, logit_bias, bad_words or min_tokens",
    ),
    "request_exceeds_quota": Code(
        (400,),
        "the request may need more tokens than its tenant ever has at once",
        "lower max_tokens, or raise the tenant's tokens_per_minute",
    ),
    "disabled": Code(
        (400,),
        "there is nothing to pin: the prefix cache is off",
        "start without --no-enable-prefix-caching",
    ),
    "shorter_than_block": Code(
        (400,),
        "what is to be pinned is less than a block",
        "pin a longer text, or start with a smaller --block-size",
    ),
    "invalid_api_key": Code(
        (401,),
        "a key is needed, and the one sent is missing or wrong",
        "send `Authorization: Bearer KEY` with a key of --api-key or --tenants",
    ),
    "operator_only": Code(
        (403,),
        "this path tells of others, and the key is a tenant's",
        "send a key of --api-key, or of a tenant with `operator: true`",
    ),
    "unknown_url": Code(
        (404,),
        "there is nothing at this path",
        "GET /docs lists what there is; the base URL of OpenAI's clients ends in /v1",
    ),
    "model_not_found": Code(
        (404,),
        "this model is not served here",
        "send the name that GET /v1/models lists, or start with --served-model-name",
    ),
    "request_not_found": Code(
        (404,),
        "no request is remembered under this id, or it is somebody else's",
        "use the answer's `id` or the header `x-request-id`; the last 1000 requests are remembered",
    ),
    "pin_not_found": Code(
        (404,),
        "there is no such pin, or it is somebody else's",
        "GET /octavo/v1/pins lists those that there are",
    ),
    "method_not_allowed": Code(
        (405,),
        "the path is known, and takes other methods: the header `allow` has them",
        "use a method of the header `allow`",
    ),
    "request_timeout": Code(
        (408, 504),
        "408: the request did not come in time; 504: the answer was not complete in time",
        "408: send faster, or raise --header-timeout or --body-timeout; 504: raise --request-timeout",
    ),
    "duplicate_id": Code(
        (400, 409),
        "there is a request or pin with this id",
        "choose another id, or wait until the other one is over",
    ),
    "cache_in_use": Code(
        (409,),
        "the prefix cache cannot be emptied while requests hold blocks",
        "try again when no request runs",
    ),
    "dumps_off": Code(
        (409,),
        "the server writes no dumps",
        "start without --crash-dump-dir off",
    ),
    "pin_quota_exceeded": Code(
        (409,),
        "the tenant may not pin so many blocks (--pin-quota)",
        "remove a pin, or raise --pin-quota or the tenant's pin_quota",
    ),
    "no_room_to_pin": Code(
        (409, 503),
        "the blocks are not there to be pinned; 503: for the moment",
        "remove a pin, or give the KV cache more blocks; 503: try again",
    ),
    "body_too_large": Code(
        (413,),
        "the body is longer than --max-body-bytes",
        "send less, or raise --max-body-bytes",
    ),
    "unsupported_media_type": Code(
        (415,),
        "the body does not say that it is JSON, or it is compressed",
        "send content-type: application/json, and no content-encoding",
    ),
    "rate_limit_exceeded": Code(
        (429,),
        "a quota of the tenant is used up; `retry-after` says for how long",
        "wait as long as `retry-after` says, or raise the tenant's quota",
    ),
    "headers_too_large": Code(
        (431,),
        "the request line with its headers is too long",
        "send fewer or shorter headers, often a cookie",
    ),
    "generation_failed": Code(
        (500,),
        "the request was sound, and the engine could not answer it; the log says why",
        "read the log of the engine at that time; the same request alone shows whether it is the cause",
    ),
    "internal_error": Code(
        (500,),
        "something went wrong in the server; the log says what",
        "read the log of the server, under the `x-request-id`, and report it",
    ),
    "loading": Code(
        (503,),
        "the model is still loading",
        "wait: GET /health/ready is 200 once it is loaded",
    ),
    "queue_full": Code(
        (503,),
        "as many requests as may run and wait already (--max-num-queued-reqs)",
        "come back after `retry-after`; if it is so for long, add replicas or raise --max-num-seqs",
    ),
    "queue_tokens_full": Code(
        (503,),
        "as many tokens as may wait already (--max-num-queued-tokens)",
        "come back after `retry-after`; if it is so for long, add replicas or KV blocks",
    ),
    "shutting_down": Code(
        (503,),
        "the server is about to end, and takes nothing new",
        "ask another replica, or come back after `retry-after`",
    ),
    "cancelled": Code(
        (503,),
        "the server cancelled the request",
        "send it again",
    ),
    "too_many_readers": Code(
        (503,),
        "as many follow the events as may",
        "close one of the streams",
    ),
    "engine_dead": Code(
        (503,),
        "the engine has died",
        "wait for its successor, with --on-engine-failure restart or what supervises the server; the log has its end",
    ),
    "engine_stuck": Code(
        (503,),
        "the engine has shown no sign of life for too long",
        "restart the server where nothing does; a step took too long, or the machine swaps",
    ),
}
