"""Files of KV blocks: what was written is read again, and nothing else ever is."""

import os
import random
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.core.plan import BlockStore
from octavo.core.tiers import Found
from octavo.engine.blockfiles import (
    MAX_HEADER_BYTES,
    BlockFileError,
    BlockFormat,
    DiskMedium,
    OffloadError,
    pack,
    parse,
)

FORMAT = BlockFormat(fingerprint=bytes(range(32)), block_size=4, block_bytes=96)
RAW = memoryview(bytes(random.Random(1).randbytes(96)))


def block(name: int, parent: int | None = None) -> BlockStore:
    return BlockStore(7, bytes([name]) * 32, None if parent is None else bytes([parent]) * 32, (name, 2, 3, 2**32 - 1))


def found(store: BlockStore) -> Found:
    return Found(store.key, store.parent, store.tokens)


@pytest.fixture
def medium(tmp_path: Path):
    opened = DiskMedium(tmp_path, FORMAT)
    yield opened
    opened.close()


def files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.kv"))


def test_what_was_written_is_read_again_and_found_by_the_next_process(medium: DiskMedium, tmp_path: Path) -> None:
    stores = [block(1), block(2, 1), block(255, 2)]
    for age, store in enumerate(stores):
        medium.write(store, RAW)
        os.utime(next(tmp_path.rglob(f"{store.key.hex()}.kv")), (age, age))
    assert all(medium.read(store.key) == RAW for store in stores)
    os.utime(next(tmp_path.rglob(f"{stores[0].key.hex()}.kv")), (0, 0))
    medium.close()
    again = DiskMedium(tmp_path, FORMAT)
    assert again.scan()[0] == found(stores[0])
    assert set(again.scan()) == {found(store) for store in stores}
    assert again.read(stores[2].key) == RAW
    again.drop(stores[2].key)
    again.drop(stores[2].key)
    assert len(again.scan()) == 2
    again.close()


def test_files_and_folders_are_for_their_owner_alone(medium: DiskMedium, tmp_path: Path) -> None:
    medium.write(block(1), RAW)
    assert {oct(path.stat().st_mode & 0o777) for path in tmp_path.rglob("*") if path.is_file()} == {"0o600"}
    assert {oct(path.stat().st_mode & 0o777) for path in tmp_path.rglob("*") if path.is_dir()} == {"0o700"}


def test_a_second_engine_is_told_that_there_is_a_first(medium: DiskMedium, tmp_path: Path) -> None:
    with pytest.raises(OffloadError, match="used by another engine"):
        DiskMedium(tmp_path, FORMAT)
    DiskMedium(tmp_path, replace(FORMAT, fingerprint=bytes(32))).close()
    medium.close()
    DiskMedium(tmp_path, FORMAT).close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OffloadError, match=r"file/.* cannot be used"):
        DiskMedium(tmp_path / "file", FORMAT)


def test_another_model_s_blocks_are_neither_found_nor_removed(medium: DiskMedium, tmp_path: Path) -> None:
    medium.write(block(1), RAW)
    other = DiskMedium(tmp_path, replace(FORMAT, fingerprint=bytes(32)))
    assert other.scan() == ()
    other.close()
    assert len(files(tmp_path)) == 1 and medium.read(block(1).key) == RAW


def test_without_a_use_for_them_files_are_removed(medium: DiskMedium, tmp_path: Path) -> None:
    medium.write(block(1), RAW)
    medium.close()
    again = DiskMedium(tmp_path, FORMAT, keep=False)
    assert again.scan() == () and not files(tmp_path)
    again.close()


def test_a_write_that_was_cut_short_leaves_no_block(medium: DiskMedium, tmp_path: Path) -> None:
    (next(tmp_path.iterdir()) / "partial").write_bytes(b"half of something")
    assert medium.scan() == ()
    medium.write(block(1), RAW)
    assert medium.scan() == (found(block(1)),)


# ---- foreign bytes ----


def whole() -> bytes:
    return pack(FORMAT, block(1, 2), RAW) + bytes(RAW)


def test_a_header_says_what_was_packed() -> None:
    one, start, crc = parse(FORMAT, whole())
    assert one == found(block(1, 2)) and whole()[start:] == RAW and crc == zlib.crc32(RAW)


def test_no_flipped_bit_is_overlooked(medium: DiskMedium, tmp_path: Path) -> None:
    """Every byte of a file, with one bit of it flipped."""
    medium.write(block(1, 2), RAW)
    (path,) = files(tmp_path)
    good = path.read_bytes()
    assert good == whole()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << position % 8
        path.write_bytes(bad)
        with pytest.raises(BlockFileError):
            medium.read(block(1).key)
    path.write_bytes(good)
    assert medium.read(block(1).key) == RAW


def test_no_file_of_another_length_is_believed(medium: DiskMedium, tmp_path: Path) -> None:
    medium.write(block(1, 2), RAW)
    (path,) = files(tmp_path)
    good = path.read_bytes()
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(BlockFileError):
            medium.read(block(1).key)
    path.write_bytes(good + b"\0")
    with pytest.raises(BlockFileError):
        medium.read(block(1).key)


@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_raise_nothing_but_a_block_file_error(seed: int) -> None:
    random_ = random.Random(seed)
    for _ in range(300):
        data = bytearray(whole())
        for _ in range(random_.randint(1, 30)):
            data[random_.randrange(len(data))] = random_.choice([0, 255, random_.randrange(256)])
        for text in (bytes(data), random_.randbytes(random_.randint(0, MAX_HEADER_BYTES)), b"octavoKV" + bytes(data)):
            try:
                parse(FORMAT, text)
            except BlockFileError:
                continue
            assert text[: len(whole()) - 96] == whole()[:-96], "changed, and believed"


@pytest.mark.parametrize(
    "other",
    [
        replace(FORMAT, fingerprint=bytes(32)),
        replace(FORMAT, block_size=8),
        replace(FORMAT, block_bytes=97),
    ],
)
def test_a_block_of_another_format_is_refused(other: BlockFormat) -> None:
    with pytest.raises(BlockFileError):
        parse(other, whole())


def test_a_scan_removes_what_is_no_block_and_follows_no_link(
    medium: DiskMedium, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    medium.write(block(1), RAW)
    (path,) = files(tmp_path)
    secret = tmp_path / "secret"
    secret.write_bytes(path.read_bytes())
    (path.parent / "link.kv").symlink_to(secret)
    (path.parent / "short.kv").write_bytes(b"octavoKV")
    (path.parent / f"{bytes([9]).hex() * 32}.kv").write_bytes(path.read_bytes())
    os.mkfifo(path.parent / "pipe.kv")
    assert medium.scan() == (found(block(1)),)
    assert files(tmp_path) == [path] and secret.exists()
    assert caplog.text.count("removing") == 4


def test_a_link_in_place_of_a_block_is_not_read(medium: DiskMedium, tmp_path: Path) -> None:
    medium.write(block(1), RAW)
    (path,) = files(tmp_path)
    target = tmp_path / "elsewhere"
    path.rename(target)
    path.symlink_to(target)
    with pytest.raises(OSError, match="symbolic link"):
        medium.read(block(1).key)
