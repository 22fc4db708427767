"""Headers of remote tars: few round trips, requests and bytes for all layouts, and never a wrong member."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardex as sx
from shardex.errors import FormatError
from shardex.formats.tar.blocks import Member, header, members_of, padding
from shardex.formats.tar.remote_headers import LANES, RemoteHeaders
from shardex.sources import ByteRange, CachedSource, LocalSource
from shardex.sources.memory import MemorySource
from tests.fake_remote import FakeRemote
from tests.servers.faulty import FaultyServer

Sizes = Iterable[tuple[str, int | bytes]]
TarFormat = Literal[0, 1, 2]


class CountingSource(CachedSource):
    """Counts round trips: calls that wait for requests which run concurrently."""

    round_trips = 0

    def read_scattered(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        self.round_trips += 1
        return super().read_scattered(path, ranges)


def write_sparse(path: Path, contents: Sizes, format: TarFormat = tarfile.USTAR_FORMAT) -> None:
    """Write a tar whose members of given sizes are holes in the file."""
    with path.open("wb") as out:
        for name, content in contents:
            info = tarfile.TarInfo(name)
            info.size = content if isinstance(content, int) else len(content)
            out.write(info.tobuf(format))
            out.write(b"" if isinstance(content, int) else content)
            out.seek(out.tell() + -info.size % 512 + (content if isinstance(content, int) else 0))
        out.truncate(out.tell() + 1024)


def samples(count: int, *sizes: int) -> Sizes:
    return [(f"{k:06d}.{part}", size) for k in range(count) for part, size in enumerate(sizes)]


def uneven(count: int, least: int, most: int, *more: int, seed: int = 0) -> Sizes:
    sizes = np.random.default_rng(seed).integers(least, most, count).tolist()
    return [(f"{k:06d}.{part}", one) for k, size in enumerate(sizes) for part, one in enumerate((size, *more))]


def inner_tar(count: int, size: int) -> bytes:
    return b"".join(header(f"{k}.x", size) + bytes(size) + padding(size) for k in range(count)) + bytes(1024)


def nested(count: int) -> Sizes:
    """Tars in a tar, of different sizes, so that headers in them look like those of the outer tar."""
    sizes = np.random.default_rng(1).integers(15_000, 25_000, count).tolist()
    return [(f"{k:06d}.tar", inner_tar(3, size // 3)) for k, size in enumerate(sizes)]


def one_huge(count: int) -> Sizes:
    yield from uneven(count, 10_000, 30_000)
    yield "huge.x", 20 << 30
    yield from (("z" + name, size) for name, size in uneven(10, 10_000, 30_000))


LONG = "a-very-long-folder-name/" * 6

LAYOUTS: dict[str, tuple[Sizes, TarFormat, int, int, float]] = {
    # members, format, most round trips, most requests, most bytes as a part of the file
    "large, small, small": (samples(200, 80_000, 20, 2), tarfile.USTAR_FORMAT, 25, 250, 0.06),
    "equal": (samples(3000, 20_000), tarfile.USTAR_FORMAT, 20, 3100, 0.04),
    "three and one": (samples(300, 20_000, 20_000, 20_000, 5), tarfile.USTAR_FORMAT, 30, 1000, 0.06),
    "uneven": (uneven(1000, 10_000, 30_000), tarfile.USTAR_FORMAT, 90, 1250, 0.06),
    "uneven, small, small": (uneven(1000, 60_000, 90_000, 20, 2), tarfile.USTAR_FORMAT, 90, 1250, 0.06),
    "uneven, GNU long names": (
        [(LONG + name, size) for name, size in uneven(1000, 10_000, 30_000)], tarfile.GNU_FORMAT, 120, 1350, 0.2
    ),
    "uneven, pax headers": (
        [(LONG + name, size) for name, size in uneven(1000, 10_000, 30_000)], tarfile.PAX_FORMAT, 120, 1350, 0.2
    ),
    "small": (samples(4000, 100), tarfile.USTAR_FORMAT, 10, 10, 1.01),
    "tar in tar": (nested(400), tarfile.USTAR_FORMAT, 150, 1500, 0.15),
    "one huge member": (one_huge(1000), tarfile.GNU_FORMAT, 150, 1700, 0.01),
    "few large members": (uneven(30, 10 << 20, 90 << 20), tarfile.USTAR_FORMAT, 32, 32, 0.01),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_costs_few_requests(layout: str, tmp_path: Path) -> None:
    contents, format, round_trips, requests, share = LAYOUTS[layout]
    write_sparse(tmp_path / "x.tar", contents, format)
    remote = FakeRemote(tmp_path)
    source = CountingSource(remote, False)
    expected = list(members_of(LocalSource(tmp_path).map("x.tar"), "x.tar"))
    assert list(members_of(RemoteHeaders(source, "x.tar"), "x.tar")) == expected
    size = (tmp_path / "x.tar").stat().st_size
    assert source.round_trips <= round_trips and len(remote.reads) <= requests
    assert remote.bytes_read <= share * size


def test_uneven_tar_of_many_members_is_read_from_many_places(tmp_path: Path) -> None:
    write_sparse(tmp_path / "x.tar", uneven(10_000, 9_000, 40_000))
    source = CountingSource(FakeRemote(tmp_path), False)
    found = list(members_of(RemoteHeaders(source, "x.tar"), "x.tar"))
    assert found == list(members_of(LocalSource(tmp_path).map("x.tar"), "x.tar"))
    assert source.round_trips < 2 * 10_000 / LANES


def test_tar_on_a_web_server(web: FaultyServer, tmp_path: Path) -> None:
    """Requests of the index, and one for all fields of some samples."""
    write_sparse(tmp_path / "x.tar", uneven(300, 9_000, 30_000, 20, 600))
    web.files["x.tar"] = (tmp_path / "x.tar").read_bytes()
    ds = sx.open(f"{web.url()}/x.tar", cache=tmp_path / "cache", access="ranged")
    assert len(ds) == 300 and web.asked.total() < 450
    web.asked.clear()
    local = sx.open(tmp_path / "x.tar")
    assert str(ds.read([7, 8, 9])) == str(local.read([7, 8, 9])) and web.asked.total() == 1


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_remote_members_equal_local_members(data: st.DataObject) -> None:
    """Random sizes, with tars and single headers within members, cut at random: the same members and the same error."""
    sizes = st.sampled_from([0, 5, 512, 2000, 9_000, 9_000, 9_000, 20_000, 40_000])
    contents = []
    for k in range(data.draw(st.integers(0, 12))):
        some = data.draw(st.lists(sizes, min_size=1, max_size=4)) * data.draw(st.sampled_from([1, 5, 40]))
        for size in some:
            kind = data.draw(st.sampled_from(["zeros", "zeros", "zeros", "tar", "header"]))
            content = {"zeros": bytes(size), "tar": inner_tar(2, size // 2), "header": bytes(512) + header("x", size)}
            contents.append((f"{'n' * data.draw(st.sampled_from([1, 150]))}{k}.x", content[kind]))
    tar = b"".join(header(name, len(one)) + one + padding(len(one)) for name, one in contents) + bytes(1024)
    tar = tar[: data.draw(st.sampled_from([len(tar), len(tar) * 2 // 3]))]
    source = MemorySource({"x.tar": tar})
    assert until_error(members_of(RemoteHeaders(source, "x.tar"), "x.tar")) == until_error(members_of(tar, "x.tar"))


def until_error(found: Iterator[Member]) -> list[Any]:
    seen: list[Any] = []
    try:
        for one in found:
            seen.append(one)
    except FormatError as error:
        seen.append(str(error))
    return seen
