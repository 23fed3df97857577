"""Text to values: what people type in flags, the environment and YAML, read by the type of the setting."""

import json
import re
from collections.abc import Iterable
from difflib import get_close_matches
from fractions import Fraction
from typing import Any

from octavo.config.schema import ConfigError, Setting, check_value

TRUE = {"true", "yes", "on", "1"}
FALSE = {"false", "no", "off", "0"}

SUFFIXES = {
    "": 1,
    **{letter: 1000 ** (power + 1) for power, letter in enumerate("kmgt")},
    **{letter: 1024 ** (power + 1) for power, letter in enumerate("KMGT")},
    **{f"{letter}b": 1000 ** (power + 1) for power, letter in enumerate("kmgt")},
    **{f"{letter}ib": 1024 ** (power + 1) for power, letter in enumerate("kmgt")},
    "b": 1,
}
"""One letter reads as in vLLM: k is 1000, K is 1024. With a B it is by the book: kB or KB is 1000, KiB is 1024."""


_COUNT = re.compile(r"\s*([+-]?[0-9][0-9_]*(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")


def parse_count(text: str) -> int | None:
    """`4096`, `32k`, `1.5K`, `4GiB` as a whole number; None where it is none."""
    match = _COUNT.fullmatch(text)
    factor = match and SUFFIXES.get(_folded(match[2]))
    if not match or not factor:
        return None
    number = Fraction(match[1].replace("_", "")) * factor
    return int(number) if number.denominator == 1 else None


def _folded(suffix: str) -> str:
    """Case matters where the suffix is one letter of k, m, g, t only."""
    return suffix if len(suffix) == 1 and suffix not in "bB" else suffix.lower()


def _parse_float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _parse_bool(text: str) -> bool | None:
    word = text.strip().lower()
    return True if word in TRUE else False if word in FALSE else None


def _parse_list(text: str) -> tuple[Any, ...] | None:
    """`a,b`, or a JSON list as in vLLM's `--allowed-origins`."""
    if text.lstrip().startswith("["):
        try:
            return tuple(json.loads(text))
        except ValueError:
            return None
    return tuple(part.strip() for part in text.split(",")) if text.strip() else ()


_PARSERS = {int: parse_count, float: _parse_float, bool: _parse_bool, tuple: _parse_list, str: str}


def read_value(setting: Setting, raw: Any, where: str) -> Any:
    """The checked value of `setting` that `raw` stands for: text from a flag, or a value from YAML or Python.

    Raises ConfigError, which names `where`.
    """
    value = _convert(setting, raw)
    problem = check_value(setting, value)
    if problem:
        raise ConfigError(f"{problem} ({where})")
    return value


def _convert(setting: Setting, raw: Any) -> Any:
    """`raw` as the type of `setting` where it can be; else what cannot be right."""
    if setting.optional and (raw is None or (isinstance(raw, str) and raw.strip().lower() == "auto")):
        return None
    if isinstance(raw, str):
        value = _PARSERS[setting.kind](raw)
        return raw if value is None else value
    if setting.kind is tuple and isinstance(raw, list | tuple):
        return tuple(raw)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if setting.kind is str and isinstance(raw, dict):
        return json.dumps(raw)  # a mapping in YAML or Python, where flags have JSON
    whole = setting.kind is float and isinstance(raw, int) and not isinstance(raw, bool)
    return float(raw) if whole else raw


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing where no known name is near."""
    near = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""
