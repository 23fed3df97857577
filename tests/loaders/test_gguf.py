"""The GGUF container: what is written is read, and every number that is wrong is named."""

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.loaders import LoadError
from octavo.loaders.gguf import GgufFile, read_gguf
from octavo.models.tensors import Format, TensorInfo
from tests.gguf_writer import CODES, GgufWriter, Typed, tensor_entry

F32_ROW = (TensorInfo((2, 4), Format.F32), struct.pack("<8f", *range(8)))


def integers(bits: int, signed: bool) -> st.SearchStrategy[int]:
    low = -(2 ** (bits - 1)) if signed else 0
    return st.integers(low, low + 2**bits - 1)


SCALARS: dict[str, st.SearchStrategy[Any]] = {
    **{f"u{bits}": integers(bits, False) for bits in (8, 16, 32, 64)},
    **{f"i{bits}": integers(bits, True) for bits in (8, 16, 32, 64)},
    "f32": st.floats(width=32, allow_nan=False),
    "f64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "str": st.text(max_size=40),
}
TYPED = st.sampled_from(sorted(SCALARS)).flatmap(
    lambda kind: st.builds(Typed, st.just(kind), SCALARS[kind] | st.lists(SCALARS[kind], max_size=9))
)


def parse(path: Path, data: bytes) -> GgufFile:
    path.write_bytes(data)
    return read_gguf(path)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf") / "model.gguf"


@given(st.dictionaries(st.text(min_size=1, max_size=20), TYPED, max_size=6), st.sampled_from((2, 3)))
def test_metadata_of_every_type_comes_back(file: Path, metadata: dict[str, Typed], version: int) -> None:
    found = parse(file, GgufWriter(metadata=dict(metadata), version=version).to_bytes())
    expected = {key: tuple(t.value) if isinstance(t.value, list) else t.value for key, t in metadata.items()}
    assert found.metadata == expected
    assert {key: type(value) for key, value in found.metadata.items()} == {k: type(v) for k, v in expected.items()}
    assert found.version == version


@given(
    st.lists(st.tuples(st.sampled_from(list(Format)), st.lists(st.integers(1, 3), min_size=1, max_size=4)), max_size=5),
    st.sampled_from((8, 32, 64, 4096)),
)
def test_tensors_come_back_where_they_were_put(file: Path, wanted: list[Any], alignment: int) -> None:
    writer = GgufWriter(alignment=alignment, metadata={"general.alignment": alignment})
    for index, (format_, dims) in enumerate(wanted):
        info = TensorInfo((*dims[:-1], dims[-1] * 256), format_)
        writer.tensors[f"t{index}"] = (info, bytes([index + 1]) * info.num_bytes)
    found = parse(file, writer.to_bytes())
    assert list(found.tensors) == list(writer.tensors)
    for name, (info, raw) in writer.tensors.items():
        assert found.tensors[name].info == info
        assert found.raw(name) == raw


def test_nested_arrays_are_read_to_a_limit(file: Path) -> None:
    def nested(depth: int) -> bytes:
        inner = struct.pack("<IQ", CODES["u8"], 1) + b"\7"
        for _ in range(depth - 1):
            inner = struct.pack("<IQ", CODES["array"], 1) + inner
        return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", 9) + inner

    assert parse(file, nested(3)).metadata == {"k": (((7,),),)}
    with pytest.raises(LoadError, match="nests arrays"):
        parse(file, nested(5))


def header(version: int = 3, num_tensors: int = 0, num_entries: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_entries) + rest


def entry(key: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


def one_tensor(shape: tuple[int, ...] = (2, 32), number: int = 0, offset: int = 0, data: int = 256) -> bytes:
    head = header(num_tensors=1, rest=tensor_entry("w", shape, number, offset))
    return head + b"\0" * (-len(head) % 32) + b"\0" * data


HUGE = 2**63 + 1
BROKEN = {
    "empty file": (b"", "file is empty"),
    "other file": (b"PK\3\4" + bytes(40), "not a GGUF file"),
    "only the magic": (b"GGUF\3\0\0\0", "needs 24 bytes"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "version 1": (header(version=1), "version 1 is not supported"),
    "version 4": (header(version=4), "version 4 is not supported"),
    "too many entries": (header(num_entries=HUGE), "metadata of 9223372036854775809 entries needs"),
    "too many tensors": (header(num_tensors=HUGE), "list of 9223372036854775809 tensors needs"),
    "long key": (header(num_entries=1, rest=struct.pack("<Q", 10**6) + bytes(99)), "has 1000000 bytes"),
    "long string": (header(num_entries=1, rest=entry(b"k", 8, struct.pack("<Q", HUGE))), "value of 'k' needs"),
    "unknown type": (header(num_entries=1, rest=entry(b"k", 13, bytes(9))), "'k' has unknown type 13"),
    "huge array": (header(num_entries=1, rest=entry(b"k", 9, struct.pack("<IQ", 4, HUGE))), "array 'k' needs"),
    "huge list of strings": (header(num_entries=1, rest=entry(b"k", 9, struct.pack("<IQ", 8, 2**61))), "'k' needs"),
    "array of unknown type": (header(num_entries=1, rest=entry(b"k", 9, struct.pack("<IQ", 99, 1))), "unknown type 99"),
    "string behind the end": (
        header(num_entries=1, rest=entry(b"k", 9, struct.pack("<IQQ", 8, 1, 5) + b"abc")),
        "string 0 ends at byte",
    ),
    "no UTF-8": (header(num_entries=1, rest=entry(b"k", 8, struct.pack("<Q", 1) + b"\xff")), "not UTF-8"),
    "list item not UTF-8": (
        header(num_entries=1, rest=entry(b"k", 9, struct.pack("<IQQ", 8, 1, 1) + b"\xff")),
        "string 0 is not UTF-8",
    ),
    "key twice": (header(num_entries=2, rest=entry(b"k", 0, b"\1") * 2), "'k' is there twice"),
    "tensor twice": (header(num_tensors=2, rest=tensor_entry("w", (4,), 0, 0) * 2 + bytes(64)), "'w' is there twice"),
    "no dims": (one_tensor(shape=()), "0 dimensions"),
    "five dims": (one_tensor(shape=(1, 1, 1, 1, 4)), "5 dimensions"),
    "dim of 0": (one_tensor(shape=(0, 32)), "whole blocks"),
    "row of half a block": (one_tensor(shape=(2, 48), number=2), "whole blocks of 32"),
    "known format": (one_tensor(number=23), "IQ4_XS, which is not supported"),
    "unknown format": (one_tensor(number=77), "format type 77"),
    "unaligned tensor": (one_tensor(offset=4), "not at a multiple of 32"),
    "truncated data": (one_tensor(data=255), "is the download complete"),
    "offset behind the end": (one_tensor(offset=2**63), "ends at byte"),
    "product of dims overflows": (one_tensor(shape=(2**62, 2**62, 4)), "ends at byte"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_named(tmp_path: Path, name: str) -> None:
    data, message = BROKEN[name]
    with pytest.raises(LoadError, match=message) as caught:
        parse(tmp_path / "broken.gguf", data)
    assert str(tmp_path / "broken.gguf") in str(caught.value)


@pytest.mark.parametrize("alignment", [0, 3, 48, 2**21, -32, True, "32"])
def test_impossible_alignments_are_refused(file: Path, alignment: Any) -> None:
    kind = {bool: "bool", str: "str"}.get(type(alignment), "i32")
    with pytest.raises(LoadError, match=r"general\.alignment"):
        parse(file, GgufWriter(metadata={"general.alignment": Typed(kind, alignment)}).to_bytes())


def test_tensors_that_share_bytes_are_refused(file: Path) -> None:
    writer = GgufWriter(tensors={"a": F32_ROW, "b": F32_ROW})
    good = writer.to_bytes()
    second = tensor_entry("b", (2, 4), 0, 32)
    assert second in good
    with pytest.raises(LoadError, match="'a' and 'b' overlap"):
        parse(file, good.replace(second, tensor_entry("b", (2, 4), 0, 0)))


def test_too_many_items_are_refused_before_they_are_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.loaders.gguf.MAX_ITEMS", 100)
    parse(file, GgufWriter(metadata={"k": [1] * 99}).to_bytes())
    with pytest.raises(LoadError, match="more than 100 in one file"):
        parse(file, GgufWriter(metadata={"k": [1] * 100}).to_bytes())


def test_a_header_without_an_end_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.loaders.gguf.MAX_HEADER_BYTES", 100)
    with pytest.raises(LoadError, match="largest header allowed ends at byte 100"):
        parse(file, GgufWriter(metadata={"k": [1] * 99}).to_bytes())


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="No such file"):
        read_gguf(tmp_path / "none.gguf")
    with pytest.raises(LoadError, match="directory"):
        read_gguf(tmp_path)
