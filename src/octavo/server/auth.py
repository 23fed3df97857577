"""Who may come in: with keys set, whoever sends one of them. Everything is closed but the two health probes."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence

from octavo.server.openai.errors import ApiError

OPEN_PATHS = frozenset({"/health", "/health/ready"})
"""Probes are made by machines that hold no key, and their answer says nothing but yes or no."""


class KeyGuard:
    """Compares digests in constant time, with all keys, so that neither time nor length tells anything of a key."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def check(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        """Raises ApiError 401 where a key is needed and none that is right was sent."""
        if not self._digests or path in OPEN_PATHS:
            return
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        sent = _digest(key.strip())
        matches = [hmac.compare_digest(sent, digest) for digest in self._digests]
        if scheme.lower() != b"bearer" or not any(matches):
            raise ApiError(
                401,
                "an API key is needed, as `Authorization: Bearer KEY`; the one sent is missing or wrong",
                code="invalid_api_key",
                headers=((b"www-authenticate", b"Bearer"),),
            )


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
