"""Errors in the form that Anthropic's clients read."""

import msgspec

from octavo.server.openai.errors import ApiError, printable

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Status -> type; what is not here is the client's fault below 500, and the server's from there."""


def error_body(error: ApiError, request_id: str) -> bytes:
    """The JSON object of an error. Its message names the field at fault, for which there is no place of its own."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    told = {"type": kind, "message": printable(error.message)}
    return msgspec.json.encode({"type": "error", "error": told, "request_id": request_id})
