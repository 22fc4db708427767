"""The blocks of tar files: `members_of` reads headers with the offsets of their data, `header` and `tar_series` write.

It reads ustar, pax and GNU long names, sizes in octal or base-256; each checksum is verified and each size compared
with the file. A tar must end with a block of zeros: without it, it was cut off. It writes plain ustar with fixed
metadata, so that equal data gives equal bytes. Nothing is ever extracted, and links raise an error. `members` and other
formats interpret the names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from zlib import adler32

from shardex.errors import FormatError, SchemaError, TruncatedShardError, UnsafeError
from shardex.files import Stage
from shardex.formats.sample_writer import ShardSeries
from shardex.sources import compression

BLOCK = 512
"""Headers and the bytes of members begin at multiples of this."""
_RECORD = 10240
_LARGEST_OCTAL = 8**11 - 1
_LONGEST_EXTENSION = 1 << 20
_BUFFER = 1 << 20

NPY_HEAD = 128
"""Bytes of the header of a `.npy`, for arrays of numbers."""
SCHEMA = "SHARDEX.schema"
"""Name of the pax record with the schema of the samples, in a global header at the beginning of a tar."""
_SCHEMA = SCHEMA.encode()

ADVICE = '; copy it again, or read what is left with truncated="warn"'
"""End of the messages about tars that were cut off."""
_REGULAR = b"0\x007"
EXTENDED = b"xXgLK"
"""Types of headers that describe the member after them."""
_SPECIAL = dict(zip(b"12346", ("hard link", "symbolic link", "character device", "block device", "pipe"), strict=True))


class MissingEndError(TruncatedShardError):
    """A tar was cut off between two members or in the padding of one: all members that it has are complete."""


class Member(NamedTuple):
    """A regular file in a tar."""

    name: str
    start: int
    """Offset of its first header, extended ones included."""
    begin: int
    """Offset of its bytes."""
    size: int


def members_of(data: Any, where: str, start: int = 0, shared: dict[str, bytes] | None = None) -> Iterator[Member]:
    """Iterate over the regular files of a tar, from the header at `start` on; `where` is its path for error messages.

    `data` is the whole tar, or an object with a length that returns the bytes of slices. Raises an error at the end if
    the tar was cut off there. The pax records of all members that follow (global headers) are added to `shared`.

    >>> tar = header("a/b.txt", 2) + b"hi" + padding(2) + bytes(1024)
    >>> list(members_of(tar, "x.tar"))
    [Member(name='a/b.txt', start=0, begin=512, size=2)]
    """
    view, end = data, len(data)
    first = at = start
    local: dict[str, bytes] = {}
    shared = {} if shared is None else shared
    while at + BLOCK <= end:
        block = bytes(view[at : at + BLOCK])
        if not _intact(block):
            if not any(block):
                _check_rest(view, at, where)
                break
            raise _damaged(block, at, where)
        kind = block[156]
        begin = at + BLOCK
        size = _size(block, local, shared, at, where)
        if begin + size > end:
            problem = f"expected {size} bytes from offset {begin} on, the file ends at {end}"
            raise TruncatedShardError(f"{where}: {problem}{ADVICE}")
        if kind in _REGULAR:
            name = _name(block, local)
            at = begin + (size + 511 & -BLOCK)
            if kind or not name.endswith("/"):
                yield Member(name, first, begin, size)
        elif kind in EXTENDED:
            _extend(shared if kind == ord("g") else local, kind, view[begin : begin + size], at, where)
            at = begin + (size + 511 & -BLOCK)
            if kind == ord("g"):
                first = at
            continue
        else:
            at = begin if kind == ord("5") else begin + (size + 511 & -BLOCK)
            _refuse(kind, block, local, first, where)
        first = at
        if local:
            local = {}
    else:
        raise _cut_off(view, first, at, where)


def plain_name(block: bytes) -> str | None:
    """Return the name in a header block; None if it is an extended header, which continues in other blocks.

    >>> plain_name(header("a/b.txt", 2)), plain_name(header("é.txt", 2)[:512])
    ('a/b.txt', None)
    """
    return _name(block, {}) if block[156] in _REGULAR else None


def is_header_of(block: bytes, name: str, size: int) -> bool:
    """Return whether this is the header right before the bytes of a member of this name and size.

    A name that is long or not ASCII is in an extended header before it, and is not compared; a size of more than 8 GiB
    may be there, too.

    >>> block = header("a/b.txt", 2)
    >>> is_header_of(block, "a/b.txt", 2), is_header_of(block, "a/c.txt", 2), is_header_of(bytes(512), "", 0)
    (True, False, False)
    """
    if len(block) != BLOCK or not _intact(block) or block[156] not in _REGULAR:
        return False
    if len(name) <= 100 and name.isascii() and _name(block, {}) != name:
        return False
    return size > _LARGEST_OCTAL or _number(block[124:136]) == size


def next_header(block: Any, at: int) -> int:
    """Return the offset of the header after the one at `at`, as its size says; 0 if this is no header.

    A size in an extended header before it is not considered.

    >>> next_header(header("a.txt", 600), 512), next_header(bytes(512), 512)
    (2048, 0)
    """
    head = bytes(block)
    if not any(head[:1]) or not _intact(head) or (size := _number(head[124:136])) < 0:
        return 0
    return at + BLOCK + (0 if head[156] == ord("5") else size + 511 & -BLOCK)


def _intact(block: bytes) -> bool:
    """Verify the checksum of a header; the low half of Adler-32 is the sum of the bytes, computed in C."""
    try:
        if adler32(block[156:], adler32(block[:148], 257)) & 0xFFFF == int(block[148:154], 8) + 1:
            return True
    except ValueError:
        pass
    # Sums of 65521 and more, seven digits, or an old tar that added signed bytes.
    rest = block[:148] + block[156:]
    total = sum(rest) + 256
    return _number(block[148:156]) in (total, total - 256 * sum(byte > 127 for byte in rest))


def _number(field: bytes) -> int:
    """Parse a number in octal or base-256; -1 if it is neither."""
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big") if field[0] == 0x80 else -1
    digits = field.partition(b"\0")[0].strip()
    try:
        return int(digits, 8) if digits else 0
    except ValueError:
        return -1


def _size(block: bytes, local: dict[str, bytes], shared: dict[str, bytes], at: int, where: str) -> int:
    stored: bytes | None = None
    if local or shared:
        stored = local.get("size", shared.get("size")) if block[156] not in EXTENDED else None
    try:
        if stored is not None:
            size = int(stored)
        else:
            size = int(block[124:135], 8) if block[135] in b"\0 " else _number(block[124:136])
    except ValueError:
        size = _number(block[124:136]) if stored is None else -1
    if size < 0:
        raise FormatError(f"{where}: expected a size in the header at offset {at}, got {stored or block[124:136]!r}")
    return size


def _name(block: bytes, local: dict[str, bytes]) -> str:
    raw = local.get("path") if local else None
    if raw is None:
        stop = block.find(0, 0, 100)
        raw = block[: stop if stop >= 0 else 100]
        if block[345] and block[257:263] == b"ustar\0":
            raw = block[345:500].partition(b"\0")[0] + b"/" + raw
    return raw.decode("utf-8", "surrogateescape")


def _extend(records: dict[str, bytes], kind: int, payload: Any, at: int, where: str) -> None:
    """Store the records of an extended header for the members that follow."""
    if len(payload) > _LONGEST_EXTENSION:
        raise FormatError(
            f"{where}: expected an extended header of at most {_LONGEST_EXTENSION} bytes, "
            f"got {len(payload)} at offset {at}"
        )
    plain = bytes(payload)
    if kind == ord("L"):
        records["path"] = plain.partition(b"\0")[0]
    elif kind != ord("K") and any(word in plain for word in (b"path=", b"size=", b"GNU.sparse", _SCHEMA)):
        found = _pax(plain, at, where)
        if any(key.startswith("GNU.sparse") for key in found):
            raise FormatError(
                f"{where}: expected whole files, got a sparse one at offset {at}; pack it without --sparse"
            )
        if kind == ord("g") and "path" in found:
            raise FormatError(f"{where}: expected a name for each member, got one name for all of them at offset {at}")
        records.update(found)


def _pax(plain: bytes, at: int, where: str) -> dict[str, bytes]:
    """Parse records such as ``20 path=a/b.txt`` and a newline; the number is the length of the record."""
    found, begin = {}, 0
    while begin < len(plain) and plain[begin]:
        space = plain.find(b" ", begin)
        digits = plain[begin:space]
        stop = begin + int(digits) if digits.isdigit() and len(digits) < 10 else 0
        key, equals, value = plain[space + 1 : stop - 1].partition(b"=")
        if space < 0 or not space < stop <= len(plain) or plain[stop - 1] != ord("\n") or not equals:
            raise FormatError(
                f"{where}: expected pax records in the header at offset {at}, got {plain[begin : begin + 40]!r}"
            )
        found[key.decode("utf-8", "surrogateescape")] = value
        begin = stop
    return found


def _refuse(kind: int, block: bytes, local: dict[str, bytes], at: int, where: str) -> None:
    """Raise an error for links, devices and sparse files; folders, volume labels and the like are skipped."""
    if kind in _SPECIAL:
        raise UnsafeError(
            f"{where}: expected regular files, got a {_SPECIAL[kind]} named {_name(block, local)!r} at offset {at}; "
            "pack the files themselves (tar --dereference --hard-dereference)"
        )
    if kind == ord("S"):
        raise FormatError(f"{where}: expected whole files, got a sparse one at offset {at}; pack it without --sparse")


def _damaged(block: bytes, at: int, where: str) -> FormatError:
    if at == 0 and (packed := _compressed(block, where)) is not None:
        return packed
    return FormatError(
        f"{where}: expected a tar header at offset {at}, got a block whose checksum is wrong: {block[:32]!r}"
    )


def _compressed(head: bytes, where: str) -> FormatError | None:
    for magic, tool in compression.COMPRESSED.items():
        if head.startswith(magic):
            return FormatError(
                f"{where}: expected a plain tar, got one compressed with {tool}; {compression.COMPRESSED_TAR}"
            )
    return None


def _check_rest(view: Any, at: int, where: str) -> None:
    """Check that only zeros follow the block of zeros that ends a tar: other data would be lost silently."""
    for begin in range(at, len(view), _BUFFER):
        part = bytes(view[begin : begin + _BUFFER])
        if rest := part.lstrip(b"\0"):
            raise FormatError(
                f"{where}: expected only zeros after the end of the tar at offset {at}, "
                f"got data at offset {begin + len(part) - len(rest)}; "
                "a header was overwritten, or several tars were put into one file"
            )


def _cut_off(view: Any, first: int, at: int, where: str) -> FormatError:
    """Return the error for a tar that ends without a block of zeros, at the latest within the block at `at`."""
    end = len(view)
    if not first and (packed := _compressed(bytes(view[: min(16, end)]), where)) is not None:
        return packed
    if first < at:
        return TruncatedShardError(
            f"{where}: expected a member after the extended header at offset {first}, the file ends at {end}{ADVICE}"
        )
    if at < end and any(view[at:]):
        return TruncatedShardError(
            f"{where}: expected a header of {BLOCK} bytes at offset {at}, the file ends at {end}{ADVICE}"
        )
    return MissingEndError(
        f"{where}: expected a block of zeros at offset {at}, which ends a tar, the file ends at {end}: it was cut off, "
        f"and samples may be missing{ADVICE}"
    )


# -- writing ------------------------------------------------------------------------------------------------------


def padding(size: int) -> bytes:
    """Return the zeros that fill the last block of a member."""
    return bytes(-size % BLOCK)


def header(name: str, size: int) -> bytes:
    """Return the header of a regular file, after a pax header if the name or the size does not fit.

    >>> len(header("a.txt", 5)), len(header("é.txt", 5))
    (512, 1536)
    """
    try:
        raw = name.encode()
    except UnicodeEncodeError as error:
        raise SchemaError(f"expected a name that UTF-8 can hold, got {name!r}: {error.reason}") from None
    records = b""
    if len(raw) > 100 or not raw.isascii():
        records += _record(b"path", raw)
    if size > _LARGEST_OCTAL:
        records += _record(b"size", b"%d" % size)
    head = _header(name.encode("ascii", "replace")[:100], size if size <= _LARGEST_OCTAL else 0, b"0")
    if not records:
        return head
    return _header(b"././@PaxHeader", len(records), b"x") + records + padding(len(records)) + head


def shared_header(record: bytes) -> bytes:
    """Return a global pax header with a schema, which other readers of tars ignore.

    >>> shared = {}; next(members_of(shared_header(b"{}") + header("a.txt", 0), "x.tar", 0, shared)), shared
    (Member(name='a.txt', start=1024, begin=1536, size=0), {'SHARDEX.schema': b'{}'})
    """
    if len(records := _record(_SCHEMA, record)) > _LONGEST_EXTENSION:
        raise SchemaError(f"expected a schema that fits into {_LONGEST_EXTENSION} bytes, got {len(record)}")
    return _header(b"././@PaxHeader", len(records), b"g") + records + padding(len(records))


def _record(key: bytes, value: bytes) -> bytes:
    rest = b" " + key + b"=" + value + b"\n"
    size = len(rest)
    while (whole := len(rest) + len(str(size))) != size:
        size = whole
    return b"%d" % size + rest


_OWNER = b"0000644\0" + b"0000000\0" * 2
_NO_TIME = b"00000000000\0"
_REST = bytes(100) + b"ustar\00000" + bytes(64) + b"0000000\0" * 2 + bytes(167)
_SUM = sum(_OWNER) + sum(_NO_TIME) + sum(_REST) + 8 * ord(" ")


def _header(name: bytes, size: int, kind: bytes) -> bytes:
    digits = b"%011o\0" % size
    total = _SUM + sum(name) + sum(digits) + kind[0]
    return b"".join((name, bytes(100 - len(name)), _OWNER, digits, _NO_TIME, b"%06o\0 " % total, kind, _REST))


def tar_series(
    stage: Stage, name: Callable[[int], str], first: int = 0, *, rows: int, size: int | None = None, begin: bytes = b""
) -> ShardSeries:
    """Return a series of tars in a stage, each of which begins with `begin`; its records are whole blocks.

    >>> import os, tempfile; stage = Stage(os.path.join(tempfile.mkdtemp(), "new"), "create")
    >>> series = tar_series(stage, "{}.tar".format, rows=10)
    >>> series.write(header("a.txt", 2) + b"hi" + padding(2)); series.finish(); len(stage.place.load("0.tar"))
    10240
    """
    limit: dict[str, Any] = {} if size is None else {"size": size - 2 * BLOCK}
    return ShardSeries(stage, name, first, rows=rows, buffer=_BUFFER, begin=begin, end=end_of_tar, **limit)


def end_of_tar(size: int) -> bytes:
    """Return what ends a tar of this size: two blocks of zeros, and more up to a whole record."""
    return bytes(2 * BLOCK + -(size + 2 * BLOCK) % _RECORD)
