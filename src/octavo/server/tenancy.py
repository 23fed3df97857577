"""Tenancy: whose a request is, what its tenant may still spend, and the file that says so, read again on demand."""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager

from octavo.config.schema import Config, ConfigError
from octavo.config.tenants import NOBODY, Tenant, num_tenants, read_keys
from octavo.control.quota import Account, Shortage
from octavo.engine.clock import now
from octavo.server.auth import KeyGuard
from octavo.server.exchange import Exchange
from octavo.server.metrics import Meters
from octavo.server.openai.errors import ApiError, invalid

log = logging.getLogger(__name__)


class Tenancy:
    """The keys of one server, and an account for each tenant. Raises ConfigError where the file cannot be used."""

    def __init__(self, config: Config, meters: Meters) -> None:
        self._config = config
        self._meters = meters
        keys = read_keys(config)
        self._guard = KeyGuard(keys)
        self._accounts = {tenant.name: Account(tenant.rules, now()) for tenant in (NOBODY, *keys.values())}

    def reload(self) -> None:
        """Reads the file again. Where it cannot be used, that is logged and what was read before holds on.

        Who is known by name keeps what was spent; requests on their way go on.
        """
        try:
            keys = read_keys(self._config)
        except ConfigError as error:
            log.error("the tenants stay as they were: %s", error)
            return
        self._guard.replace(keys)
        for tenant in keys.values():
            account = self._accounts.get(tenant.name)
            if account is None:
                self._accounts[tenant.name] = Account(tenant.rules, now())
            else:
                account.adopt(tenant.rules, now())
        log.info("read %s again: %d tenants", self._config.server.tenants, num_tenants(keys))

    def admit(self, exchange: Exchange) -> None:
        """Finds out whose request this is. Raises ApiError 401."""
        exchange.tenant = self._guard.admit(exchange.path, exchange.headers)

    @contextmanager
    def entered(self, exchange: Exchange) -> Iterator[None]:
        """For the time of a request that generates. Raises ApiError 429 where its tenant's quotas do not allow it."""
        account = self._accounts[exchange.tenant.name]
        exchange.spending = spending = Spending(account, exchange, self._meters)
        spending.enter()
        try:
            yield
        finally:
            spending.end(0)


class Spending:
    """What one request takes from its tenant's account: first what it may need, at the end what it used."""

    def __init__(self, account: Account, exchange: Exchange, meters: Meters) -> None:
        self._account = account
        self._exchange = exchange
        self._meters = meters
        self._charged = 0
        self._inside = False

    def enter(self) -> None:
        shortage = self._account.enter(now())
        self._tell("requests")
        if shortage is not None:
            raise self._refusal(shortage)
        self._inside = True

    def charge(self, tokens: int, param: str) -> None:
        """Takes as many tokens as the request may need, `param` of them the most.

        Raises ApiError 429 where they are not there now, 400 where they never will be.
        """
        shortage = self._account.charge(tokens, now())
        if shortage is None:
            self._charged = tokens
        self._tell("tokens")
        if shortage is not None:
            raise self._too_large(shortage, param) if shortage.wait_s is None else self._refusal(shortage)

    def end(self, used: int) -> None:
        """The request is over, and used so many tokens. Only the first call counts."""
        if self._inside:
            self._inside = False
            self._account.settle(self._charged, used, now())
            self._account.leave()

    def _tell(self, kind: str) -> None:
        standing = self._account.standings(now()).get(kind)
        if standing is not None:
            self._exchange.header(f"x-ratelimit-limit-{kind}", str(standing.limit))
            self._exchange.header(f"x-ratelimit-remaining-{kind}", str(standing.left))
            self._exchange.header(f"x-ratelimit-reset-{kind}", _duration(standing.full_s))

    def _refusal(self, shortage: Shortage) -> ApiError:
        self._meters.over_quota(self._exchange.tenant.name, shortage.quota)
        after_s = max(1, math.ceil(shortage.wait_s or 0))
        message = f"{_REASONS[shortage.quota]} ({_who(self._exchange.tenant)}: {shortage.quota} is {shortage.limit:,})"
        message = message.format(asked=shortage.asked, left=shortage.left)
        kind = "tokens" if shortage.quota == "tokens_per_minute" else "requests"
        headers = ((b"retry-after", b"%d" % after_s),)
        return ApiError(429, message, kind=kind, code="rate_limit_exceeded", headers=headers)

    def _too_large(self, shortage: Shortage, param: str) -> ApiError:
        return invalid(
            f"the request may need {shortage.asked:,} tokens, more than there ever are at once "
            f"({_who(self._exchange.tenant)}: {shortage.quota} is {shortage.limit:,}); a smaller {param} may do",
            param,
            "request_exceeds_quota",
        )


_REASONS = {
    "requests_per_minute": "no request is left for now",
    "tokens_per_minute": "the request may need {asked:,} tokens, and {left:,} are left for now",
    "concurrent_requests": "as many requests as may are running or waiting already",
}


def _who(tenant: Tenant) -> str:
    return f"tenant {tenant.name}" if tenant.name else "no tenant"


def _duration(seconds: float) -> str:
    """As OpenAI writes it: 0s, 120ms, 7s, 6m0s."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms" if seconds else "0s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
