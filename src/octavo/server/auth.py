"""Who may come in: with keys set, whoever sends one of them. Everything is closed but the two health probes."""

import hmac
import secrets
from collections.abc import Mapping

from octavo.config.tenants import NOBODY, Keys, Tenant, digest_of
from octavo.server.openai.errors import ApiError

OPEN_PATHS = frozenset({"/health", "/health/ready"})
"""Probes are made by machines that hold no key, and their answer says nothing but yes or no."""
FOR_ALL = frozenset({"/tokenize", "/detokenize", "/tokenizer_info", "/version", "/docs", "/openapi.json"})
"""Beside what is its own, what every tenant may use. The rest tells of others, and is for operators."""
OWN = ("/v1/", "/octavo/v1/pins", "/octavo/v1/explain", "/octavo/v1/requests/")
"""What begins like this shows a tenant nothing but its own."""


class KeyGuard:
    """Knows whose a key is. It compares digests of digests, made with a secret of this process.

    So the time that a comparison takes tells nothing of any key, whichever keys there are and whichever is sent.
    """

    def __init__(self, keys: Keys) -> None:
        self._secret = secrets.token_bytes(32)
        self.replace(keys)

    def replace(self, keys: Keys) -> None:
        """From now on these are the keys."""
        self._tenants = {self._sealed(digest): tenant for digest, tenant in keys.items()}

    def admit(self, path: str, headers: Mapping[bytes, bytes]) -> Tenant:
        """Whose request this is. Raises ApiError 401 where a key is needed and none that is right was sent."""
        if not self._tenants or path in OPEN_PATHS:
            return NOBODY
        tenant = self._tenants.get(self._sealed(digest_of(_key(headers))))
        if tenant is None:
            raise ApiError(
                401,
                "an API key is needed, as `Authorization: Bearer KEY`; the one sent is missing or wrong",
                code="invalid_api_key",
                headers=((b"www-authenticate", b"Bearer"),),
            )
        return tenant

    def _sealed(self, digest: bytes) -> bytes:
        return hmac.digest(self._secret, digest, "sha256")


def check_operator(tenant: Tenant, path: str) -> None:
    """Raises ApiError 403 where this path is not for tenants."""
    if not (tenant.rules.operator or path in OPEN_PATHS or path in FOR_ALL or path.startswith(OWN)):
        message = f"{path} tells of others, too: it needs a key of --api-key, or of a tenant with `operator: true`"
        raise ApiError(403, message, kind="permission_error", code="operator_only")


def _key(headers: Mapping[bytes, bytes]) -> bytes:
    """The key as OpenAI's clients send it, or as Anthropic's do."""
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"").strip()
