"""Fields: a checkpoint's configuration, read with a type and a range for each value; messages name the key."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast


class ModelError(ValueError):
    """A configuration that is broken, or that asks for a feature which the decoder does not have."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Typed reading of one mapping. Every method raises ModelError for a value of the wrong type or out of range.

    `prefix` goes before each key. An absent key and a null value are the same thing.
    """

    values: Mapping[str, object]
    prefix: str = ""

    def get(self, key: str) -> object:
        return self.values.get(self.prefix + key)

    def integer(self, key: str, default: int | None = None, *, low: int = 1, high: int = 2**31 - 1) -> int:
        value = self._present(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ModelError(f"{self.prefix}{key} is {value!r}; it must be a whole number from {low} to {high}")
        return value

    def number(self, key: str, default: float | None = None, *, low: float = 1e-12, high: float = 1e12) -> float:
        """A number above zero, far from what would overflow in later arithmetic unless the bounds say otherwise."""
        value = self._present(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ModelError(f"{self.prefix}{key} is {value!r}; it must be a number from {low:g} to {high:g}")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._present(key, default)
        if not isinstance(value, str):
            raise ModelError(f"{self.prefix}{key} is {value!r}; it must be a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._present(key, default)
        if not isinstance(value, bool):
            raise ModelError(f"{self.prefix}{key} is {value!r}; it must be true or false")
        return value

    def section(self, key: str) -> "Fields":
        """The mapping under `key`; an empty one where there is none."""
        value = self.get(key)
        if value is None:
            return Fields({})
        if not isinstance(value, Mapping):
            raise ModelError(f"{self.prefix}{key} is {value!r}; it must be an object")
        return Fields(cast(Mapping[str, object], value))

    def _present(self, key: str, default: object) -> object:
        value = self.get(key)
        if value is not None:
            return value
        if default is None:
            raise ModelError(f"{self.prefix}{key} is missing")
        return default
