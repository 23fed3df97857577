"""Attention windows: how many tokens each layer attends to, as configurations state it.

A window of W: a token attends to itself and the W - 1 tokens before it (`sliding_window_overlay` in Transformers,
`n_swa` in llama.cpp).

What a config.json says counts, whatever class it names: `layer_types` hold for a Mistral too, and a window for a Llama,
though the classes of that name in Transformers do not look at them.
"""

from collections.abc import Sequence
from typing import cast

from octavo.models.fields import Fields, ModelError

Windows = tuple[int | None, ...]
"""For each layer its window; None: full attention. Empty: all layers have full attention."""

SLIDING, FULL = "sliding_attention", "full_attention"


def first_key(window: int | None, position: int) -> int:
    """The first position that a token at `position` attends to."""
    return 0 if window is None else max(0, position - window + 1)


def windows_from_config(config: Fields, num_layers: int, context: int) -> Windows:
    """`sliding_window` holds for all layers, or for those that `layer_types` says."""
    window = None if config.get("sliding_window") is None else config.integer("sliding_window")
    listed = config.get("layer_types")
    if listed is None:
        return _windows([True] * num_layers, window, context)
    kinds: list[object] = list(cast(Sequence[object], listed)) if isinstance(listed, list | tuple) else [listed]
    other = next((kind for kind in kinds if kind not in (SLIDING, FULL)), None)
    if other is not None:
        raise ModelError(f"layers of type {other!r} (layer_types) are not supported (only {FULL} and {SLIDING})")
    if len(kinds) != num_layers:
        raise ModelError(f"layer_types has {len(kinds)} entries for {num_layers} layers")
    if SLIDING in kinds and window is None:
        raise ModelError(f"layer_types has {SLIDING}, but sliding_window is missing")
    return _windows([kind == SLIDING for kind in kinds], window, context)


def windows_from_gguf(config: Fields, num_layers: int, context: int) -> Windows:
    """`attention.sliding_window` holds for all layers, or for those that `attention.sliding_window_pattern` says.

    The pattern is true or false for each layer, or a number n: each n-th layer has full attention.
    """
    window = config.integer("attention.sliding_window", 0, low=0) or None
    pattern = config.get("attention.sliding_window_pattern")
    if isinstance(pattern, list | tuple):
        slides: list[object] = list(cast(Sequence[object], pattern))
        if len(slides) != num_layers or any(type(slide) is not bool for slide in slides):
            key = f"{config.prefix}attention.sliding_window_pattern"
            raise ModelError(f"{key} must be true or false for each of {num_layers} layers, or a number")
        return _windows([slide is True for slide in slides], window, context)
    period = config.integer("attention.sliding_window_pattern", 0, low=0)
    return _windows([period == 0 or layer % period < period - 1 for layer in range(num_layers)], window, context)


def _windows(slides: Sequence[bool], window: int | None, context: int) -> Windows:
    """A window of at least the context never cuts anything off, so it is no window."""
    if window is None or window >= context or not any(slides):
        return ()
    return tuple(window if slide else None for slide in slides)
