"""Containers of audio and video, told apart by their first bytes, and the number of bytes that their headers promise.

In: the bytes of a file. Out: the name of the container; an error if the file ends before its header says. The libraries
that decode return what is left of a file that was cut off, without an error. `audio` and `video` decode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from shardex.errors import FormatError

AUDIO_CONTAINERS = ("wav", "flac", "ogg", "mp3", "aiff", "au", "caf", "w64")
VIDEO_CONTAINERS = ("mp4", "mkv", "avi", "ogg", "mpegts", "mpeg", "flv", "asf")


def container_of(data: bytes) -> str | None:
    """Return the container of these bytes (`AUDIO_CONTAINERS`, `VIDEO_CONTAINERS`); None for bytes of another kind.

    >>> container_of(b"RIFF....WAVEfmt "), container_of(b"fLaC"), container_of(b"GIF89a")
    ('wav', 'flac', None)
    """
    head = data[:16]
    if head[:4] in (b"RIFF", b"RIFX", b"RF64"):
        return {b"WAVE": "wav", b"AVI ": "avi"}.get(head[8:12])
    for magic, name in _MAGIC.items():
        if head.startswith(magic):
            return name
    if head[4:8] in _MP4_BOXES:
        return "mp4"
    if head[:1] == b"\x47" and data[188:189] == b"\x47":
        return "mpegts"
    return "mp3" if len(head) > 3 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0 and head[1] & 6 else None


_MAGIC = {
    b"fLaC": "flac",
    b"OggS": "ogg",
    b"ID3": "mp3",
    b"FORM": "aiff",
    b".snd": "au",
    b"caff": "caf",
    b"riff\x2e\x91\xcf\x11": "w64",
    b"\x1a\x45\xdf\xa3": "mkv",
    b"\x00\x00\x01\xba": "mpeg",
    b"\x00\x00\x01\xb3": "mpeg",
    b"FLV": "flv",
    b"\x30\x26\xb2\x75\x8e\x66\xcf\x11": "asf",
}
_MP4_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"moof", b"styp")


def known_container(data: bytes, what: str, known: Sequence[str]) -> str:
    """Return the container of a file that is complete, as far as its header says; an error if it is not of `known`.

    >>> known_container(b"fLaC", "a video", ["mp4"])
    Traceback (most recent call last):
    ...
    shardex.errors.FormatError: expected a video (mp4), got a file of the kind flac
    """
    container = container_of(data)
    if container is None or container not in known:
        found = f"a file of the kind {container}" if container else f"{len(data):,} bytes: {bytes(data[:16])!r}"
        raise FormatError(f"expected {what} ({', '.join(known)}), got {found if data else '0 bytes'}")
    check_complete(data, container)
    return container


def check_complete(data: bytes, container: str) -> None:
    """Raise an error if the container says that the file has more bytes than there are.

    >>> check_complete(b"RIFF....WAVEdata" + (400).to_bytes(4, "little") + b"..", "wav")
    Traceback (most recent call last):
    ...
    shardex.errors.FormatError: expected 420 bytes, as the header of this wav file says, got 22: the file is cut off
    """
    measure = _DECLARED.get(container)
    declared = measure(data) if measure else 0
    if declared > len(data):
        raise FormatError(
            f"expected {declared:,} bytes, as the header of this {container} file says, got {len(data):,}: "
            "the file is cut off"
        )


def _riff_size(data: bytes) -> int:
    """Return where the chunk with the sound ends; the size of the whole file is wrong in many files."""
    order: Literal["big", "little"] = "big" if data[:4] in (b"RIFX", b"FORM") else "little"
    at, content = 12, 0
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 8], order)
        if size >= 0x7FFF_F000:  # written before the size was known, or in another chunk (RF64)
            return 0
        end = at + 8 + size
        content = end if data[at : at + 4] in (b"data", b"SSND") else content
        at = end + size % 2
    return content


def _avi_size(data: bytes) -> int:
    """Return where the first part of an AVI file ends, which has the headers and the first gigabyte of frames."""
    return 8 + int.from_bytes(data[4:8], "little")


def _mp4_size(data: bytes) -> int:
    """Return where the last box of an MP4 file ends."""
    at, end = 0, len(data)
    while at + 8 <= end:
        size = int.from_bytes(data[at : at + 4], "big")
        if size == 1:
            size = int.from_bytes(data[at + 8 : at + 16], "big")
        if size < 8:  # 0: the box extends to the end of the file; others are not valid, the decoder says so
            return 0
        at += size
    return at


def _ebml_size(data: bytes) -> int:
    """Return where the segment of a Matroska file ends; 0 for a live stream, whose size is not known."""
    at = _skip_number(data, 4)
    size, _ = _read_number(data, 4)
    at += size
    if data[at : at + 4] != b"\x18\x53\x80\x67":
        return 0
    size, unknown = _read_number(data, at + 4)
    return 0 if unknown else _skip_number(data, at + 4) + size


def _read_number(data: bytes, at: int) -> tuple[int, bool]:
    """Return a number of variable length, and whether it is the one that stands for an unknown size."""
    width = _skip_number(data, at) - at
    bits = 7 * width
    number = int.from_bytes(data[at : at + width], "big") & ((1 << bits) - 1)
    return number, number == (1 << bits) - 1


def _skip_number(data: bytes, at: int) -> int:
    """Return where the number of variable length at `at` ends."""
    first = data[at] if at < len(data) else 0
    return at + 9 - first.bit_length()


def _ogg_size(data: bytes) -> int:
    """Return where the last page of an Ogg file ends."""
    at = data.rfind(b"OggS")
    if at + 27 > len(data):
        return at + 27
    segments = data[at + 26]
    return at + 27 + segments + sum(data[at + 27 : at + 27 + segments])


_DECLARED: dict[str, Callable[[bytes], int]] = {
    "wav": _riff_size,
    "avi": _avi_size,
    "aiff": _riff_size,
    "mp4": _mp4_size,
    "mkv": _ebml_size,
    "ogg": _ogg_size,
}
