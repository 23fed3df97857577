"""ApiError: everything that may be said to a client instead of an answer, in the form that OpenAI's clients read."""

import msgspec

from octavo.core.events import Finished, Refused
from octavo.core.parameter import ParameterError

Headers = tuple[tuple[bytes, bytes], ...]

INVALID = "invalid_request_error"
SERVER = "server_error"


class ApiError(Exception):
    """An answer of 400 or more. `param` is the path of the field at fault, `code` a word for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: Headers = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = headers

    def body(self) -> bytes:
        """The JSON object of the error: always the same four keys."""
        error = {"message": printable(self.message), "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


def printable(text: str) -> str:
    """`text` without lone surrogates, which are not UTF-8: a message may quote what the client sent."""
    return text.encode("utf-8", "backslashreplace").decode()


def invalid(message: str, param: str | None = None, code: str | None = "invalid_value") -> ApiError:
    """400: a field has a value that it cannot have."""
    return ApiError(400, message, param=param, code=code)


def bad_parameter(error: ParameterError, name: str) -> ApiError:
    """400: a parameter is outside its range; `name` is what the client calls it."""
    return invalid(str(error).replace(error.field, name, 1), name)


def too_long(context: int, why: str, param: str | None = None) -> ApiError:
    """400: the prompt does not fit. `why` goes on after the words by which clients know that a shorter one would."""
    message = f"This model's maximum context length is {context} tokens{why}"
    return ApiError(400, message, param=param, code="context_length_exceeded")


def unsupported(param: str, message: str) -> ApiError:
    """400: a field that is known, and that this server does not have yet. Never accepted and ignored."""
    return ApiError(400, message, param=param, code="unsupported_parameter")


def unknown_model(name: str, served: tuple[str, ...]) -> ApiError:
    """404: the model is not here; says which are."""
    here = ", ".join(repr(model) for model in served)
    return ApiError(404, f"the model {name!r} is not served here, but {here}", param="model", code="model_not_found")


def unavailable(message: str, code: str, retry_after_s: int = 1) -> ApiError:
    """503: not now. Says when to come back."""
    headers = ((b"retry-after", b"%d" % retry_after_s),)
    return ApiError(503, message, kind="service_unavailable_error", code=code, headers=headers)


def shutting_down(message: str) -> ApiError:
    """503: the server is about to end; another one, or its successor, may be asked."""
    return unavailable(message, "shutting_down", 5)


def timed_out(limit_s: float) -> ApiError:
    """504: the request was cancelled, since it took too long."""
    message = f"the answer was not complete after {limit_s:g} s (--request-timeout), and was cancelled"
    return ApiError(504, message, kind="timeout_error", code="request_timeout")


def engine_dead(error: Exception) -> ApiError:
    """503: the engine died. Its last words, beyond the first line, are for the log."""
    how = str(error).split("\n", 1)[0].removesuffix("; its last lines:")
    return unavailable(f"the engine has died: {how}", "engine_dead", 5)


def failed(message: str, code: str = "generation_failed") -> ApiError:
    """500: this request was sound and could not be answered."""
    return ApiError(500, message, kind=SERVER, code=code)


def internal_error() -> ApiError:
    """500: a mistake of ours."""
    return failed("something went wrong in the server: its log says what", "internal_error")


_OWN_DOING = {"structured_outputs": "structured_outputs", "nothing_allowed": None}
"""Codes of requests that failed for what they asked for, and the field at fault where it is known."""


def broken_off(event: Finished) -> ApiError:
    """What an error at the end of a request means to its client: 400 where its own fields are the cause."""
    message = event.message or "the engine could not go on with this request"
    if event.code in _OWN_DOING:
        return invalid(message, _OWN_DOING[event.code], event.code)
    return failed(message)


_REFUSAL_STATUS = {"duplicate_id": 409}
_REFUSAL_PARAM = {"too_many_choices": "n"}


def refused(event: Refused) -> ApiError:
    """What the engine's refusal means to a client: its own fault, unless it says when to come back."""
    if event.retry_after_s is not None:
        return unavailable(event.message, event.code, event.retry_after_s)
    status = _REFUSAL_STATUS.get(event.code, 400)
    return ApiError(status, event.message, param=_REFUSAL_PARAM.get(event.code), code=event.code)
