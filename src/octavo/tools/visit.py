"""Visits: commands that ask a running server over HTTP. One request, one JSON answer, errors in its own words."""

import argparse
import http.client
from typing import Any
from urllib.parse import urlsplit

import msgspec

from octavo.config import Config
from octavo.config.address import near_url
from octavo.tools.terminal import check_text

PATIENCE_S = 600.0
"""What is asked for may have to be computed first."""


class ServerRefused(RuntimeError):
    """There is no server, or it says no; the message says which, and why."""


def ask(
    config: Config,
    options: argparse.Namespace,
    method: str,
    path: str,
    body: Any = None,
    patience_s: float = PATIENCE_S,
) -> dict[str, Any]:
    """The answer of the server at `--url`, or where the configuration would have it listen. Raises ServerRefused."""
    url = urlsplit(url_of(config, options))
    kind = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}.get(url.scheme)
    if kind is None or not url.hostname:
        raise ServerRefused(f"--url must look like http://127.0.0.1:8000, got {options.url!r}")
    connection = kind(url.hostname, url.port, timeout=patience_s)
    try:
        payload = None if body is None else msgspec.json.encode(body)
        connection.request(method, url.path.rstrip("/") + path, payload, _headers(config, options))
        response = connection.getresponse()
        return _answer(response.status, response.read())
    except (OSError, http.client.HTTPException) as error:
        raise ServerRefused(f"no answer from {url.geturl()}: {error or type(error).__name__}") from error
    finally:
        connection.close()


def url_of(config: Config, options: argparse.Namespace) -> str:
    """The server that is asked."""
    return options.url or near_url(config.server.host, config.server.port)


def _headers(config: Config, options: argparse.Namespace) -> dict[str, str]:
    keys = (options.key, *config.server.api_key)
    key = next((key for key in keys if key), None)
    return {"content-type": "application/json", **({} if key is None else {"authorization": f"Bearer {key}"})}


def _answer(status: int, raw: bytes) -> dict[str, Any]:
    try:
        answer = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise ServerRefused(f"what answers there is no octavo: status {status}, {raw[:80]!r}")
    if status >= 400:
        error = answer.get("error")
        raise ServerRefused(error["message"] if isinstance(error, dict) else f"status {status}")
    return answer


def prefix(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of a request about the beginning of a prompt: a text, or, with `--chat`, what a user says.

    Raises NotText.
    """
    text = " ".join(options.text)
    check_text(text, "the text")
    salt = {} if options.cache_salt is None else {"cache_salt": options.cache_salt}
    if not options.chat:
        return {"prompt": text, **salt}
    system = [] if options.system is None else [{"role": "system", "content": options.system}]
    user = [{"role": "user", "content": text}] if text else []
    return {"messages": [*system, *user], **salt}
