"""LayerGroups: the KV groups of a model, layers of one attention window that share a block table.

A block of the KV cache holds some tokens for the layers of one group. All groups have as many layers, so that all
blocks are of one size and come from one pool. Where the layers do not divide evenly, the last group of a window has
some to spare, and their part of its blocks stays unused.

    3 layers with full attention, 15 with a window     1 group and 5 groups, of 3 layers each
"""

from dataclasses import dataclass

from octavo.models.spec import ModelSpec
from octavo.models.windows import Windows


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """Where a layer's KV lies: in the blocks of its group, as the `slot`-th layer of it."""

    group: int
    slot: int


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """How the layers of a model share block tables."""

    windows: Windows
    """Of each group; those with full attention come first."""
    slots: int
    """Layers in each group, the spare ones too."""
    places: tuple[LayerPlace, ...]
    """Of each layer."""

    @property
    def num_spare(self) -> int:
        """Layers' worth of memory, over one block of each group, that stays unused."""
        return len(self.windows) * self.slots - len(self.places)

    def report(self) -> tuple[str, ...]:
        """A line for people, where layers have windows."""
        if self.windows == (None,):
            return ()
        kinds = [f"{self.windows.count(w)} with {_kind(w)}" for w in dict.fromkeys(self.windows)]
        spare = f", {self.num_spare} of them to spare" if self.num_spare else ""
        layers = "1 layer" if self.slots == 1 else f"{self.slots} layers"
        return (f"KV groups: {', '.join(kinds)}; of {layers} each{spare}",)


def _kind(window: int | None) -> str:
    return "full attention" if window is None else f"a window of {window:,} tokens"


def layer_groups(spec: ModelSpec) -> LayerGroups:
    """The groups of a model: with the fewest spare layers, and of those the smallest groups."""
    layers: dict[int | None, list[int]] = {}
    for layer in range(spec.num_layers):
        layers.setdefault(spec.window(layer), []).append(layer)
    counts = [len(members) for members in layers.values()]
    slots = min(range(min(counts), max(counts) + 1), key=lambda size: sum(-(-count // size) for count in counts) * size)
    windows: list[int | None] = []
    places: dict[int, LayerPlace] = {}
    for window in sorted(layers, key=lambda window: (window is not None, window or 0)):
        for i, layer in enumerate(layers[window]):
            places[layer] = LayerPlace(len(windows) + i // slots, i % slots)
        windows += [window] * -(-len(layers[window]) // slots)
    return LayerGroups(tuple(windows), slots, tuple(places[layer] for layer in range(spec.num_layers)))
