"""Quotas: what a tenant may spend, as buckets that fill evenly. Pure: time is an argument."""

from collections.abc import Mapping
from dataclasses import dataclass

from octavo.config.tenants import Rules

MINUTE_S = 60.0


class Bucket:
    """Holds `size` at most, begins full, and fills evenly within a minute. It may be in debt."""

    def __init__(self, size: int, time_s: float) -> None:
        self.size = size
        self._level = float(size)
        self._time_s = time_s

    def level(self, time_s: float) -> float:
        """What there is. Below zero: debt."""
        return min(self.size, self._level + (time_s - self._time_s) * self.size / MINUTE_S)

    def wait_s(self, amount: float, time_s: float) -> float:
        """How long until there is so much: 0 where there is. Of more than `size` there never is."""
        return max(0.0, amount - self.level(time_s)) * MINUTE_S / self.size

    def take(self, amount: float, time_s: float) -> None:
        """Takes it, whether it is there or not; a negative amount is given back."""
        self._level, self._time_s = min(self.size, self.level(time_s) - amount), time_s

    def resize(self, size: int, time_s: float) -> None:
        """What was spent stays spent."""
        spent = self.size - self.level(time_s)
        self.size, self._level, self._time_s = size, size - spent, time_s


@dataclass(frozen=True, slots=True)
class Shortage:
    """A quota that does not allow it now: which, what it is, what there is of it, and when there is enough."""

    quota: str
    """The setting's name."""
    limit: int
    asked: int
    left: int
    wait_s: float | None
    """None: that cannot be known, or never."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Of one bucket, for the client to see."""

    limit: int
    left: int
    full_s: float
    """When it will be full again."""


_KINDS = {"requests": "requests_per_minute", "tokens": "tokens_per_minute"}


class Account:
    """What one tenant has spent of its quotas."""

    def __init__(self, rules: Rules, time_s: float) -> None:
        self.rules = rules
        self.num_inside = 0
        """Requests that run or wait."""
        self._buckets: dict[str, Bucket] = {}
        self.adopt(rules, time_s)

    def adopt(self, rules: Rules, time_s: float) -> None:
        """Goes by new rules from now on."""
        self.rules = rules
        for kind, name in _KINDS.items():
            size = getattr(rules, name)
            bucket = self._buckets.get(kind)
            if size is None:
                self._buckets.pop(kind, None)
            elif bucket is None:
                self._buckets[kind] = Bucket(size, time_s)
            else:
                bucket.resize(size, time_s)

    def enter(self, time_s: float) -> Shortage | None:
        """Counts a request in, for `leave` to count out; or says why it may not come in, and counts nothing."""
        most = self.rules.concurrent_requests
        if most is not None and self.num_inside >= most:
            return Shortage("concurrent_requests", most, 1, 0, None)
        shortage = self._short("requests", 1, time_s)
        if shortage is None:
            self._take("requests", 1, time_s)
            self.num_inside += 1
        return shortage

    def leave(self) -> None:
        self.num_inside -= 1

    def charge(self, tokens: int, time_s: float) -> Shortage | None:
        """Takes what a request may need; or says why there is not enough, and takes nothing."""
        shortage = self._short("tokens", tokens, time_s)
        if shortage is None:
            self._take("tokens", tokens, time_s)
        return shortage

    def settle(self, charged: int, used: int, time_s: float) -> None:
        """Gives back what was charged and not used, or takes the rest."""
        self._take("tokens", used - charged, time_s)

    def standings(self, time_s: float) -> Mapping[str, Standing]:
        """Of `requests` and `tokens`, those that have a quota."""
        return {
            kind: Standing(bucket.size, max(0, int(bucket.level(time_s))), bucket.wait_s(bucket.size, time_s))
            for kind, bucket in self._buckets.items()
        }

    def _take(self, kind: str, amount: int, time_s: float) -> None:
        if kind in self._buckets:
            self._buckets[kind].take(amount, time_s)

    def _short(self, kind: str, amount: int, time_s: float) -> Shortage | None:
        bucket = self._buckets.get(kind)
        wait_s = 0.0 if bucket is None else bucket.wait_s(amount, time_s)
        if bucket is None or not wait_s:
            return None
        left = max(0, int(bucket.level(time_s)))
        return Shortage(_KINDS[kind], bucket.size, amount, left, wait_s if amount <= bucket.size else None)
