"""Rope scaling as divisors of the plain frequencies: the default, linear and llama3 kinds of config.json."""

import math

from octavo.models.fields import Fields, ModelError
from octavo.models.spec import RopeSpec


def rope_from_config(config: Fields, dim: int) -> RopeSpec:
    """Reads `rope_parameters` (Transformers 5), or `rope_theta` with `rope_scaling`. Refuses other kinds."""
    settings = config.section("rope_parameters")
    if not settings.values:
        settings = config.section("rope_scaling")
    theta = settings.number("rope_theta", config.number("rope_theta", 10000.0, low=1.0), low=1.0)
    if settings.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0)) != 1.0:
        raise ModelError("rotary embedding of a part of each head (partial_rotary_factor) is not supported")
    return RopeSpec(dim=dim, theta=theta, divisors=_divisors(settings, dim, theta))


def rope_kind(settings: Fields) -> str:
    return settings.text("rope_type", settings.text("type", "default"))


def linear_divisors(dim: int, factor: float) -> tuple[float, ...]:
    """Position interpolation: all frequencies divided alike."""
    return (factor,) * (dim // 2)


def llama3_divisors(dim: int, theta: float, settings: Fields) -> tuple[float, ...]:
    """Llama 3.1's scaling: short waves stay, long ones are divided by `factor`, those between are blended."""
    factor = settings.number("factor")
    low, high = settings.number("low_freq_factor"), settings.number("high_freq_factor")
    context = settings.integer("original_max_position_embeddings")
    if high <= low:
        raise ModelError(f"rope scaling: high_freq_factor {high} must be above low_freq_factor {low}")
    plain = RopeSpec(dim=dim, theta=theta).inverse_frequencies()
    return tuple(_llama3_divisor(context * frequency / (2 * math.pi), factor, low, high) for frequency in plain)


def _llama3_divisor(turns: float, factor: float, low: float, high: float) -> float:
    """`turns`: how often the wave goes round within the context that the model was first trained for."""
    if turns < low:
        return factor
    if turns > high:
        return 1.0
    kept = (turns - low) / (high - low)
    return 1.0 / (kept + (1.0 - kept) / factor)


def _divisors(settings: Fields, dim: int, theta: float) -> tuple[float, ...] | None:
    kind = rope_kind(settings)
    if kind == "default":
        return None
    if kind == "linear":
        return linear_divisors(dim, settings.number("factor"))
    if kind == "llama3":
        return llama3_divisors(dim, theta, settings)
    raise ModelError(f"rope scaling of type {kind!r} is not supported (only default, linear, llama3)")
