"""The length of MP3 files without a header that gives it.

Most MP3 files begin with a frame (named Xing, Info or VBRI) that has the number of frames. Without it libsndfile
estimates the length from the first bit rate and ignores what follows: of a file of variable bit rate it may return a
quarter. `with_length` counts the frames and puts such a frame in front.
"""

from __future__ import annotations

_BIT_RATES = {  # kbit/s by (MPEG 1, layer)
    (True, 1): (0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
_SEARCH = 64 << 10
"""Number of bytes after the tag in which the first frame must begin."""


def with_length(data: bytes) -> bytes:
    """Return an MP3 file that begins with the number of its frames: the same bytes, or a frame with it and the bytes.

    >>> with_length(b"no frames")
    b'no frames'
    """
    begin = _first_frame(data)
    if begin is None or _has_length(data, begin):
        return data
    header = data[begin : begin + 4]
    if _layer(header) != 3:
        return data
    return _length_frame(header, _count_frames(data, begin)) + data[begin:]


def _layer(header: bytes) -> int:
    return 4 - ((header[1] >> 1) & 3)


def _frame_size(header: bytes) -> int:
    """Return the size of a frame in bytes; 0 if this is no header of a frame with a known size."""
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE0 != 0xE0:
        return 0
    version, layer = (header[1] >> 3) & 3, _layer(header)
    bits, rate = header[2] >> 4, (header[2] >> 2) & 3
    if version == 1 or layer == 4 or bits in (0, 15) or rate == 3:
        return 0
    kilobits, padding = _BIT_RATES[version == 3, layer][bits], (header[2] >> 1) & 1
    if layer == 1:
        return (12_000 * kilobits // _RATES[version][rate] + padding) * 4
    halved = version != 3 and layer == 3
    return (72_000 if halved else 144_000) * kilobits // _RATES[version][rate] + padding


def _first_frame(data: bytes) -> int | None:
    """Return where the first frame begins: one that another frame or the end of the file follows."""
    at = 0
    while data[at : at + 3] == b"ID3" and len(data) >= at + 10:
        a, b, c, d = data[at + 6 : at + 10]  # seven bits each
        at += 10 + (a << 21 | b << 14 | c << 7 | d) + (10 if data[at + 5] & 16 else 0)
    stop = min(len(data), at + _SEARCH)
    while (at := data.find(b"\xff", at, stop)) >= 0:
        size = _frame_size(data[at : at + 4])
        if size and (at + size == len(data) or _frame_size(data[at + size : at + size + 4])):
            return at
        at += 1
    return None


def _tag_offset(header: bytes) -> int:
    """Return where the tag Xing is in a frame: after the header and the side information."""
    mono = header[3] >> 6 == 3
    if (header[1] >> 3) & 3 == 3:
        return 4 + (17 if mono else 32)
    return 4 + (9 if mono else 17)


def _has_length(data: bytes, begin: int) -> bool:
    """Tell whether the first frame has the number of frames (flag 1 of the tag)."""
    tag = begin + _tag_offset(data[begin : begin + 4])
    if data[tag : tag + 4] in (b"Xing", b"Info"):
        return bool(data[tag + 7 : tag + 8] and data[tag + 7] & 1)
    return data[begin + 36 : begin + 40] == b"VBRI"


def _count_frames(data: bytes, begin: int) -> int:
    """Return the number of whole frames; bytes between frames, which belong to tags, are skipped."""
    at, count, end = begin, 0, len(data)
    while at + 4 <= end:
        size = _frame_size(data[at : at + 4])
        if size and at + size <= end:
            at, count = at + size, count + 1
        else:
            at = data.find(b"\xff", at + 1)
            if at < 0:
                break
    return count


def _length_frame(header: bytes, frames: int) -> bytes:
    """Return a frame without sound that has the number of the frames after it."""
    # Without a checksum, which would be wrong; at 64 kbit/s or more every frame has room for the tag.
    plain = bytes([header[0], header[1] | 1, max(header[2] >> 4, 8) << 4 | header[2] & 0b1100, header[3]])
    tag = b"Xing" + (1).to_bytes(4, "big") + frames.to_bytes(4, "big")
    return (plain + bytes(_tag_offset(header) - 4) + tag).ljust(_frame_size(plain), b"\0")
