"""What a folder served by `python -m http.server`, without ranges and listings, is good for, and what errors say."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import shardex as sx
from shardex.errors import AccessDeniedError, AddressError, RemoteError, RemoteReadError, UnknownFormatError


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_files_without_ranges(tmp_path: Path, url: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    (tmp_path / "large.npy").write_bytes(b"\x93NUMPY" + bytes(9 << 20))
    assert [sample.n for sample in sx.open(f"{url}/a.jsonl", cache=False)] == [1, 2]
    with pytest.raises(RemoteReadError, match=r"answers without ranges, as `python -m http.server` does: download"):
        sx.open(f"{url}/large.npy", cache=False)


def test_folders_and_patterns(tmp_path: Path, url: str) -> None:
    sx.write(tmp_path / "native", [{"n": 1}])
    for what in ("native/", "native/*.arrow", "*/x.jsonl"):
        with pytest.raises(
            RemoteError, match=r"a web server does not list its files; give their names.* native datasets"
        ):
            sx.open(f"{url}/{what}", cache=False)
    with pytest.raises(
        UnknownFormatError, match=r"if it is a folder, a web server does not list .*; native datasets are"
    ):
        sx.open(f"{url}/native", cache=False)


@pytest.mark.parametrize("name", ["a", "a.jsonl"])
def test_writing_is_refused(url: str, name: str) -> None:
    for write in (sx.write, sx.create):
        with pytest.raises(
            AccessDeniedError, match=r"a web server is only read; write to a folder, or to a bucket: s3://"
        ):
            write(f"{url}/{name}", [{"n": 1}])


def test_adopting_shards_at_a_private_address(tmp_path: Path, url: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    with pytest.raises(AddressError, match=r"public internet, got 127.0.0.1: .* copy the shards .* with sx.storage"):
        sx.adopt(f"{url}/a.jsonl", tmp_path / "beside", cache=False)
    assert not (tmp_path / "beside").exists()
    sx.storage(url, headers={"x-any": "1"})
    try:
        assert sx.adopt(f"{url}/a.jsonl", tmp_path / "beside", cache=False)[0].n == 1
    finally:
        sx.storage(url)
