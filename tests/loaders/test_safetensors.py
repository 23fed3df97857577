"""The safetensors container: files of the format's own package are read, and every wrong number is named."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from octavo.loaders import LoadError
from octavo.loaders.dequant import dequantize
from octavo.loaders.safetensors import find_shards, read_safetensors
from octavo.models.tensors import Format, TensorInfo


def test_files_of_the_official_package_are_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "a": rng.standard_normal((3, 5)).astype(np.float32),
        "b.c": rng.standard_normal((2, 2, 2)).astype(np.float16),
        "none": np.zeros((0, 4), np.float32),
        "one": np.float32([7]),
    }
    save_file(arrays, tmp_path / "w.safetensors", metadata={"format": "np"})
    file = read_safetensors(tmp_path / "w.safetensors")
    assert set(file.entries) == set(arrays)
    for name, array in arrays.items():
        format_ = Format.F16 if array.dtype == np.float16 else Format.F32
        assert file.info(name) == TensorInfo(array.shape, format_)
        np.testing.assert_array_equal(dequantize(file.raw(name), file.info(name)), array.astype(np.float32))


def test_formats_that_cannot_be_read_are_refused_when_asked_for(tmp_path: Path) -> None:
    save_file({"ids": np.arange(4), "w": np.ones(4, np.float32)}, tmp_path / "w.safetensors")
    file = read_safetensors(tmp_path / "w.safetensors")
    assert len(file.raw("w")) == 16
    with pytest.raises(LoadError, match=r"'ids' has dtype I64, which is not supported \(only F32, F16, BF16\)"):
        file.info("ids")


def container(header: Any, data: bytes = bytes(64), length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(shape: Any, begin: Any, end: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


BROKEN = {
    "empty": (b"", "file is empty"),
    "seven bytes": (bytes(7), "too few"),
    "header behind the end": (container({}, b"", length=2**63), "claims 9223372036854775808 bytes"),
    "no JSON": (container(b"{nope"), "JSON is not as expected"),
    "a list": (container([]), "JSON is not as expected"),
    "deep JSON": (container(b'{"w":' * 50_000), "JSON is not as expected"),
    "entry of another form": (container({"w": 3}), "JSON is not as expected"),
    "shape of strings": (container({"w": tensor(["4"], 0, 16)}), "JSON is not as expected"),
    "negative dim": (container({"w": tensor([-4, -1], 0, 16)}), "impossible shape"),
    "huge dim": (container({"w": tensor([2**62, 4], 0, 16)}), "impossible shape"),
    "many dims": (container({"w": tensor([1] * 9, 0, 4)}), "impossible shape"),
    "behind the end": (container({"w": tensor([17], 0, 68)}), r"lies at \[0, 68\), but the data has 64 bytes"),
    "negative offset": (container({"w": tensor([4], -16, 0)}), r"lies at \[-16, 0\)"),
    "backwards": (container({"w": tensor([4], 16, 0)}), r"lies at \[16, 0\)"),
    "enormous offset": (container({"w": tensor([4], 0, 10**30)}), "lies at|JSON is not as expected"),
    "overlap": (container({"a": tensor([4], 0, 16), "b": tensor([4], 12, 28)}), "'a' and 'b' overlap"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_named(tmp_path: Path, name: str) -> None:
    data, message = BROKEN[name]
    path = tmp_path / "broken.safetensors"
    path.write_bytes(data)
    with pytest.raises(LoadError, match=message) as caught:
        read_safetensors(path)
    assert str(path) in str(caught.value)


def test_bytes_that_do_not_fit_the_shape_are_refused(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(container({"w": tensor([5], 0, 16)}))
    with pytest.raises(LoadError, match="'w' has 16 bytes, but its shape needs 20"):
        read_safetensors(tmp_path / "w.safetensors").raw("w")


def write_shards(folder: Path, weight_map: dict[str, str]) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        save_file({name[0]: np.ones(4, np.float32)}, folder / name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_an_index_names_the_shards(tmp_path: Path) -> None:
    write_shards(tmp_path, {"a": "a.safetensors", "b": "b.safetensors"})
    save_file({"zz": np.ones(4, np.float32)}, tmp_path / "not-listed.safetensors")
    assert [shard.path.name for shard in find_shards(tmp_path)] == ["a.safetensors", "b.safetensors"]


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "../a.safetensors"}, "not the name of a safetensors file in the same folder"),
        ({"a": "/a.safetensors"}, "not the name of a safetensors file"),
        ({"a": "a.bin"}, "not the name of a safetensors file"),
        ({"a": "c.safetensors"}, r"c\.safetensors: No such file"),
        ({"a": "b.safetensors"}, "tensor 'a' should be in b.safetensors, but is not"),
    ],
)
def test_a_wrong_index_is_refused(tmp_path: Path, weight_map: dict[str, str], message: str) -> None:
    write_shards(tmp_path, weight_map)
    with pytest.raises(LoadError, match=message):
        find_shards(tmp_path)


def test_one_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path, {"a": "a.safetensors", "b": "b.safetensors"})
    save_file({"a": np.ones(4, np.float32), "b": np.ones(4, np.float32)}, tmp_path / "b.safetensors")
    with pytest.raises(LoadError, match=r"'a' is in both a\.safetensors and b\.safetensors"):
        find_shards(tmp_path)


def test_without_an_index_there_must_be_one_file(tmp_path: Path) -> None:
    save_file({"a": np.ones(4, np.float32)}, tmp_path / "x.safetensors")
    assert [shard.path.name for shard in find_shards(tmp_path)] == ["x.safetensors"]
    save_file({"a": np.ones(4, np.float32)}, tmp_path / "y.safetensors")
    with pytest.raises(LoadError, match="2 safetensors files, but no model"):
        find_shards(tmp_path)
    save_file({"a": np.ones(4, np.float32)}, tmp_path / "model.safetensors")
    assert [shard.path.name for shard in find_shards(tmp_path)] == ["model.safetensors"]


def test_pytorch_files_get_a_hint(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(LoadError, match=r"PyTorch's \.bin files are not supported"):
        find_shards(tmp_path)
