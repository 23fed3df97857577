"""MappedTensors: the TensorSource of all loaders, and the check of a checkpoint's tensors against its spec."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from octavo.loaders.errors import LoadError
from octavo.models.family import Family
from octavo.models.shapes import TENSORS_PER_LAYER, tensor_shapes
from octavo.models.spec import ModelSpec
from octavo.models.tensors import Format, TensorInfo


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as it lies in a file. `interleaved_heads` > 0: rows are to be put in order when they are read."""

    info: TensorInfo
    view: memoryview
    interleaved_heads: int = 0


class MappedTensors:
    """Tensors by canonical name, as views of mapped files; interleaved rows are put in order in a copy."""

    def __init__(self, tensors: Mapping[str, StoredTensor]) -> None:
        self._tensors = tensors

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def info(self, name: str) -> TensorInfo:
        return self._tensors[name].info

    def raw(self, name: str) -> memoryview:
        stored = self._tensors[name]
        if not stored.interleaved_heads:
            return stored.view
        return deinterleave_rows(stored.view, stored.info.shape[0], stored.interleaved_heads)


def deinterleave_rows(raw: memoryview, num_rows: int, num_heads: int) -> memoryview:
    """Row 2i of a head becomes its row i, row 2i + 1 its row i + half: the order of the half-split rotary form.

    GGUF stores the q and k rows of llama models with the two halves of each head interleaved. Works on rows of bytes,
    so for any format.
    """
    head_dim, row_bytes = num_rows // num_heads, len(raw) // num_rows
    rows = [raw[start : start + row_bytes] for start in range(0, len(raw), row_bytes)]
    heads = range(0, num_rows, head_dim)
    ordered = [row for head in heads for half in (0, 1) for row in rows[head + half : head + head_dim : 2]]
    return memoryview(b"".join(ordered))


def check_layer_count(spec: ModelSpec, num_tensors: int) -> None:
    """Refuses a number of layers that the file cannot hold, before a list of their tensors is made."""
    if spec.num_layers * TENSORS_PER_LAYER > num_tensors:
        raise LoadError(f"the configuration says {spec.num_layers} layers, but there are {num_tensors} tensors in all")


def check_tensors(spec: ModelSpec, names: Mapping[str, str], infos: Mapping[str, TensorInfo]) -> None:
    """Every tensor that the spec needs is there in its shape. `names`: canonical name -> stored name."""
    for canonical, shape in tensor_shapes(spec).items():
        stored = names[canonical]
        info = infos.get(stored)
        if info is None:
            raise LoadError(f"tensor {stored!r} is missing (expected shape {list(shape)})")
        if info.shape != shape:
            raise LoadError(f"tensor {stored!r} has shape {list(info.shape)}, expected {list(shape)}")


def check_no_extras(family: Family, extras: Iterable[str]) -> None:
    """A tensor that nothing reads means a feature that is not computed: better refused than silently wrong."""
    name = next(iter(extras), None)
    if name is not None:
        raise LoadError(f"tensor {name!r} is not part of family {family.name!r}: {family.extra_feature(name)}")


def main_format(infos: Iterable[TensorInfo]) -> Format:
    """The format that most bytes of the weights are in."""
    sizes: dict[Format, int] = {}
    for info in infos:
        sizes[info.format] = sizes.get(info.format, 0) + info.num_bytes
    return max(sizes, key=lambda format_: sizes[format_])
