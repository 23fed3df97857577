"""Tenants: whose a key is, and what each tenant may do. Read from the YAML file that `--tenants` names, strictly."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from octavo.config.schema import Config, ConfigError, check_section, option, section_settings
from octavo.config.sources import by_name, environment_text, read_yaml
from octavo.config.values import read_value

PRIVATE = "private"
LOWEST_PRIORITY = 2**31 - 1
HIGHEST_PRIORITY = -(2**31)
RESERVED = frozenset({"default", "other"})
"""Words that metrics use for requests of no tenant, and of tenants beyond those that have a label of their own."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def _group(name: str) -> str | None:
    return None if _NAME.fullmatch(name) else "it must be `private` or a name of letters, digits, dots and dashes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What one tenant may do. A quota that is not given is no limit."""

    requests_per_minute: int | None = option(
        None,
        help="requests that generate; so many at once, and as many again evenly over each minute",
        at_least=1,
        none_means="no limit",
    )
    tokens_per_minute: int | None = option(
        None, help="tokens of prompts and answers, in the same way", unit="tokens", at_least=1, none_means="no limit"
    )
    concurrent_requests: int | None = option(
        None, help="requests that run or wait at the same time", at_least=1, none_means="no limit"
    )
    max_tokens_per_request: int | None = option(
        None,
        help="prompt plus answer of one choice: a smaller --max-model-len",
        unit="tokens",
        at_least=2,
        none_means="--max-model-len",
    )
    priority: int = option(
        0,
        help="of requests that give none; lower goes first, under --scheduling-policy priority",
        at_least=HIGHEST_PRIORITY,
        at_most=LOWEST_PRIORITY,
    )
    highest_priority: int | None = option(
        None,
        help="the lowest number that a request may give",
        at_least=HIGHEST_PRIORITY,
        at_most=LOWEST_PRIORITY,
        none_means="the tenant's priority",
    )
    weight: int = option(
        1,
        help="its share of a busy engine beside that of others, under --scheduling-policy fair",
        at_least=1,
        at_most=1000,
    )
    cache: str = option(
        PRIVATE,
        help="whose cached prompts it may hit: `private`, its own; or a name, those of all tenants that say this name",
        check=_group,
    )
    pin_quota: float | None = option(
        None,
        help="share of the KV blocks that it may pin",
        at_least=0,
        at_most=0.5,
        none_means="--pin-quota",
    )
    operator: bool = option(False, help="may also use /metrics and /load, empty the cache, and see the pins of others")

    def __post_init__(self) -> None:
        check_section(self)
        if self.most_urgent > self.priority:
            raise ConfigError(f"highest_priority is {self.most_urgent}, a higher number than priority, {self.priority}")

    @property
    def most_urgent(self) -> int:
        """The lowest priority that a request may give."""
        return self.priority if self.highest_priority is None else self.highest_priority


@dataclass(frozen=True, slots=True)
class Tenant:
    name: str
    """Empty: whoever needs no key, or sends one of `--api-key`."""
    rules: Rules = field(default_factory=Rules)


NOBODY = Tenant("", Rules(operator=True, highest_priority=HIGHEST_PRIORITY))
"""The tenant of a server without tenants, and of the keys of `--api-key`: no quota, and all of the server."""

Keys = Mapping[bytes, Tenant]
"""SHA-256 digest of a key -> whose it is."""


def digest_of(key: bytes) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key).digest()


def read_keys(config: Config) -> Keys:
    """Whose keys these are: those of `--api-key` and of the file. Empty: no key is asked for.

    Raises ConfigError where the file cannot be read, or says what cannot be.
    """
    own = {digest_of(key.encode()): NOBODY for key in config.server.api_key}
    if config.server.tenants is None:
        return own
    file = Path(config.server.tenants)
    keys = dict(own)
    for tenant, digests in _tenants(file):
        _check_policy(file, tenant, config.scheduler.scheduling_policy)
        for digest in digests:
            if digest in keys:
                other = keys[digest].name or "--api-key"
                raise ConfigError(f"{file}: a key of {tenant.name} is one of {other}, too: whose request would it be?")
            keys[digest] = tenant
    return MappingProxyType(keys)


def num_tenants(keys: Keys) -> int:
    """Those that have a name."""
    return len({tenant.name for tenant in keys.values() if tenant.name})


def _check_policy(file: Path, tenant: Tenant, policy: str) -> None:
    """A setting that the scheduler does not look at would be a promise that nobody keeps."""
    if policy != "priority" and (tenant.rules.priority or tenant.rules.most_urgent):
        message = f"{file}: {tenant.name} has a priority, but the server runs with --scheduling-policy {policy}"
        raise ConfigError(message)
    if policy != "fair" and tenant.rules.weight != 1:
        message = f"{file}: {tenant.name} has a weight, but the server runs with --scheduling-policy {policy}"
        raise ConfigError(message)


def _tenants(file: Path) -> Iterator[tuple[Tenant, list[bytes]]]:
    """The tenants of a file, each with the digests of its keys."""
    content = _mapping(read_yaml(file), f"{file}:", ("defaults", "tenants"))
    defaults = _rules(content.get("defaults") or {}, f"{file}: defaults:", ())
    tenants = content.get("tenants")
    if not isinstance(tenants, dict) or not tenants:
        raise ConfigError(f"{file}: tenants must have a name and settings for each tenant, got {_kind(tenants)}")
    for name, given in cast(dict[Any, Any], tenants).items():
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in RESERVED:
            reserved = ", ".join(sorted(RESERVED))
            raise ConfigError(
                f"{file}: a tenant's name is at most 64 letters, digits, dots and dashes, "
                f"and none of {reserved}; got {name!r}"
            )
        where = f"{file}: {name}:"
        own = _rules(given, where, ("keys",))
        digests = [_digest(key, where) for key in _texts(own.pop("keys", None), where)]
        try:
            yield Tenant(name, Rules(**{**defaults, **own})), digests
        except ConfigError as error:
            raise ConfigError(f"{where} {error}") from None


def _rules(given: Any, where: str, others: tuple[str, ...]) -> dict[str, Any]:
    """The checked values of a tenant's settings; those of `others` as they came."""
    known = {setting.name: setting for setting in section_settings("tenants", Rules)}
    values = _mapping(given, where, (*others, *known))
    return {
        name: read_value(known[name], raw, where.rstrip(":")) if name in known else raw for name, raw in values.items()
    }


def _mapping(given: Any, where: str, known: tuple[str, ...]) -> dict[str, Any]:
    """A mapping with none but known names, which may have dashes."""
    if not isinstance(given, dict):
        raise ConfigError(f"{where} must have lines like `{known[0]}: ...`, got {_kind(given)}")
    return by_name(cast(dict[Any, Any], given), where, known)


def _kind(value: Any) -> str:
    """What it is, without what is in it: that may be a key."""
    return "nothing" if value in (None, {}, []) else type(value).__name__


def _texts(keys: Any, where: str) -> list[str]:
    items = cast(list[Any], keys if isinstance(keys, list) else [] if keys is None else [keys])
    if not items or not all(isinstance(item, str) and item for item in items):
        raise ConfigError(f"{where} keys must be a list of texts, not empty: without a key nobody can be this tenant")
    return cast(list[str], items)


def _digest(key: str, where: str) -> bytes:
    """The digest of a key that is given as `sha256:HEX`, as `env:NAME`, or as it is."""
    kind, _, rest = key.partition(":")
    if kind == "sha256":
        if not _DIGEST.fullmatch(rest.lower()):
            raise ConfigError(f"{where} sha256: must be followed by 64 hexadecimal digits (printf %s KEY | sha256sum)")
        return bytes.fromhex(rest)
    if kind == "env":
        key = environment_text(rest) or ""
        if not key:
            raise ConfigError(f"{where} the variable {rest!r} in `env:{rest}` is not set, or empty")
    if not key.isascii() or key.strip() != key:
        raise ConfigError(f"{where} a key has characters that no header can carry as they are")
    return digest_of(key.encode())
