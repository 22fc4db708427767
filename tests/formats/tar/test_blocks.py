"""Blocks of tars: all forms of headers are read, damaged ones raise."""

import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardex.errors import FormatError, ShardexError, TruncatedShardError
from shardex.formats.tar.blocks import header, members_of, padding


def member(name: str, data: bytes) -> bytes:
    return header(name, len(data)) + data + padding(len(data))


def checked(block: bytearray) -> bytes:
    """Return the header with a correct checksum."""
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block[:512])
    return bytes(block)


def test_every_flipped_header_byte_raises() -> None:
    tar = bytearray(member("0.txt", b"hello") + member("1.txt", b"world") + bytes(1024))
    for at in (at for at in range(1024, 1536) if at not in (1178, 1179)):  # those two end the checksum and mean nothing
        for bit in (0, 1, 7):
            tar[at] ^= 1 << bit
            with pytest.raises(
                FormatError, match=r"x\.tar: expected a tar header at offset 1024, got a block whose checksum is wrong"
            ):
                list(members_of(tar, "x.tar"))
            tar[at] ^= 1 << bit
    assert len(list(members_of(tar, "x.tar"))) == 2


@pytest.mark.parametrize("sizes", [(5, 1, 0), (700, 512, 30_000)])
def test_every_cut_raises(sizes: tuple[int, ...]) -> None:
    """Cuts in headers, data and padding, between members, and within the first block of zeros."""
    tar = b"".join(member(f"{'é' * k}{k}.txt", b"x" * size) for k, size in enumerate(sizes))
    assert len(list(members_of(tar + bytes(512), "x.tar"))) == len(sizes)  # one block suffices
    whole = tar + bytes(1024)
    for end in range(0, len(tar) + 512, 1 if len(tar) < 10_000 else 61):
        with pytest.raises(TruncatedShardError, match=rf"x\.tar: expected .*, the file ends at {end}"):
            list(members_of(whole[:end], "x.tar"))
    for end in range(0, len(tar) + 512, 512):
        with pytest.raises(TruncatedShardError):
            list(members_of(whole[:end], "x.tar"))
    assert len(list(members_of(whole[:-1], "x.tar"))) == len(sizes)


def test_missing_member_after_extended_header_raises() -> None:
    whole = member("é.txt", b"1")
    with pytest.raises(
        TruncatedShardError, match="expected a member after the extended header at offset 0, the file ends at 1024"
    ):
        list(members_of(whole[:1024], "x.tar"))


def test_sizes_in_octal_and_base_256() -> None:
    for field in (
        b"\x80" + (5).to_bytes(11, "big"),
        b"000000000005",
        b"          5 ",
        b"5" + bytes(11),
        b"5 " + bytes(10),
    ):
        block = bytearray(header("0.txt", 5))
        block[124:136] = field
        assert [m.size for m in members_of(checked(block) + b"hello" + bytes(1024), "x.tar")] == [5]
    for field in (b"\xff" * 12, b"0000000000x\0", b"-0000000005\0", b"00000000009\0"):
        block = bytearray(header("0.txt", 5))
        block[124:136] = field
        with pytest.raises(FormatError, match="expected a size in the header at offset 0"):
            list(members_of(checked(block) + b"hello", "x.tar"))


def test_size_beyond_the_file_raises() -> None:
    huge = bytearray(header("0.txt", 5))
    huge[124:136] = b"\x80" + (1 << 80).to_bytes(11, "big")
    with pytest.raises(TruncatedShardError, match=str(1 << 80)):
        list(members_of(checked(huge), "x.tar"))


def test_signed_checksums_of_old_tars() -> None:
    block = bytearray(header("0.txt", 0))
    block[500:512] = b"\xff" * 12
    signed = sum(block[:148]) + sum(block[156:]) + 256 - 12 * 256
    for text in (b"%06o\0 " % signed, b"%07o\0" % (signed + 12 * 256), b"%07o " % (signed + 12 * 256)):
        block[148:156] = text
        assert len(list(members_of(block + bytes(512), "x.tar"))) == 1


def extended(kind: bytes, records: bytes) -> bytes:
    block = bytearray(header("./x", len(records)))
    block[156:157] = kind
    return checked(block) + records + padding(len(records))


def test_pax_records_are_parsed() -> None:
    tail = member("0.txt", b"hello") + bytes(1024)
    found = list(members_of(extended(b"g", b"14 comment=ab\n") + extended(b"x", b"9 size=2\n") + tail, "x.tar"))
    assert found == [("0.txt", 1024, 2560, 2)]
    found = list(members_of(extended(b"g", b"9 size=2\n") + tail, "x.tar"))
    assert found == [("0.txt", 1024, 1536, 2)]
    found = list(members_of(extended(b"L", b"long/name.txt\0") + extended(b"K", b"link\0") + tail, "x.tar"))
    assert found == [("long/name.txt", 0, 2560, 5)]
    for kind, records, message in [
        (b"x", b"9 size=-\n", "expected a size in the header at offset 1024"),
        (b"x", b"99 size=1\n", "expected pax records in the header at offset 0"),
        (b"x", b"size=1\n", "expected pax records in the header at offset 0"),
        (b"x", b"22 GNU.sparse.major=1\n", "expected whole files, got a sparse one"),
        (b"g", b"10 path=a\n", "expected a name for each member"),
        (b"x", b"x" * (1 << 20) + b"path=", "expected an extended header of at most 1048576 bytes"),
    ]:
        with pytest.raises(FormatError, match=message):
            list(members_of(extended(kind, records) + tail, "x.tar"))


def test_large_sizes_get_a_pax_header() -> None:
    with tarfile.open(fileobj=io.BytesIO(header("0.bin", 9 << 30) + bytes(1024))) as tar:
        info = tar.next()
    assert info is not None
    assert (info.name, info.size, info.offset_data) == ("0.bin", 9 << 30, 1536)


@settings(deadline=None)
@given(st.binary(max_size=40), st.integers(0, 3000), st.integers(0, 3000))
def test_random_bytes_give_members_or_shardex_errors(noise: bytes, at: int, end: int) -> None:
    """Any bytes give members or a shardex error."""
    tar = bytearray(member("é/0.txt", b"hello") + member("1.npy", b"x" * 700))
    tar[at : at + len(noise)] = noise
    try:
        found = list(members_of(tar[:end] if noise else tar, "x.tar"))
    except ShardexError:
        return
    assert all(one.begin + one.size <= len(tar) for one in found)
