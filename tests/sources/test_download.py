"""Remote files are copied to the disk whole or not at all; an interrupted download goes on."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import shardex as sx
from shardex.errors import ChecksumError, ShardexError
from shardex.sources import download, download_file, place_of
from tests.servers.faulty import FaultyServer

DATA = bytes(range(256)) * 1000
SHA = f"sha256:{hashlib.sha256(DATA).hexdigest()}"


@pytest.fixture
def server(web: FaultyServer) -> FaultyServer:
    """A web server with one file, of which requests are not retried."""
    web.files["a.bin"] = DATA
    sx.storage(web.url("")[:-1], retries=0)
    return web


@pytest.mark.parametrize("mode", ["ok", "nohead", "untagged", "whole", "chunked"])
def test_download(server: FaultyServer, tmp_path: Path, mode: str) -> None:
    steps: list[tuple[int, int]] = []
    url = f"{server.url(mode)}/a.bin"
    download_file([url], tmp_path / "deep" / "a.bin", checksum=SHA, advance=lambda *step: steps.append(step))
    assert (tmp_path / "deep" / "a.bin").read_bytes() == DATA
    assert os.listdir(tmp_path / "deep") == ["a.bin"]
    assert steps[-1] == (len(DATA), len(DATA))


def test_an_existing_file_is_kept(server: FaultyServer, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"mine")
    download_file([f"{server.url()}/a.bin"], tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == b"mine" and not server.asked


def test_an_existing_file_with_another_checksum_is_replaced(server: FaultyServer, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"cut off")
    wrong = f"sha256:{'0' * 64}"
    with pytest.raises(ChecksumError, match="expected a file with sha256 0000"):
        download_file([f"{server.url()}/a.bin"], path, checksum=wrong)
    assert path.read_bytes() == b"cut off" and os.listdir(tmp_path) == ["a.bin"]
    download_file([f"{server.url()}/a.bin"], path, checksum=SHA)
    assert path.read_bytes() == DATA
    asked = dict(server.asked)
    download_file([f"{server.url()}/a.bin"], path, checksum=SHA.upper())
    assert server.asked == asked


def test_names_with_spaces_and_queries(server: FaultyServer, tmp_path: Path) -> None:
    server.files["a b.bin"] = b"1"
    download_file([f"{server.url()}/a%20b.bin?download=1"], tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"1"


def test_an_empty_file(server: FaultyServer, tmp_path: Path) -> None:
    server.files["empty"] = b""
    download_file([f"{server.url()}/empty"], tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b""


def test_next_url_is_tried(server: FaultyServer, tmp_path: Path) -> None:
    urls = [f"{server.url(mode)}/a.bin" for mode in ("error", "denied", "flipped", "ok")]
    download_file([f"{server.url()}/none", *urls], tmp_path / "a.bin", checksum=SHA)
    assert (tmp_path / "a.bin").read_bytes() == DATA
    assert os.listdir(tmp_path) == ["a.bin"]


def test_wrong_checksum(server: FaultyServer, tmp_path: Path) -> None:
    with pytest.raises(ChecksumError, match="expected a file with sha256"):
        download_file([f"{server.url('flipped')}/a.bin"], tmp_path / "a.bin", checksum=SHA)
    assert os.listdir(tmp_path) == []
    for wrong in ("00ff", "sha257:00", "sha256:"):
        with pytest.raises(ValueError, match="expected a checksum"):
            download_file([f"{server.url()}/a.bin"], tmp_path / "a.bin", checksum=wrong)


def test_no_url_answers(server: FaultyServer, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        download_file([f"{server.url()}/none"], tmp_path / "a.bin")
    with pytest.raises(ShardexError, match="one of 2 URLs"):
        download_file([f"{server.url()}/none", f"{server.url('error')}/a.bin"], tmp_path / "a.bin")
    with pytest.raises(ValueError, match="list of URLs"):
        download_file([], tmp_path / "a.bin")
    assert not (tmp_path / "a.bin").exists()


def test_an_interrupted_download_goes_on(server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_AT_ONCE", 100_000)

    def stop(done: int, size: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download_file([f"{server.url()}/a.bin"], tmp_path / "a.bin", advance=stop)
    assert not (tmp_path / "a.bin").exists()
    server.headers.clear()
    download_file([f"{server.url()}/a.bin"], tmp_path / "a.bin", checksum=SHA)
    ranges = [headers["range"] for headers in map(_lower, server.headers) if "range" in headers]
    assert ranges == ["bytes=100000-199999", "bytes=200000-255999"]


def _lower(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def test_another_version_starts_anew(server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_AT_ONCE", 100_000)
    place = place_of("memory://versions")
    place.put("a.bin", DATA)

    def stop(done: int, size: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download_file(["memory://versions/a.bin"], tmp_path / "a.bin", advance=stop)
    place.put("a.bin", DATA[::-1] + b"!")
    download_file(["memory://versions/a.bin"], tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == DATA[::-1] + b"!"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_temporary_files_of_others_are_kept(server: FaultyServer, tmp_path: Path) -> None:
    other = tmp_path / "a.bin.gz.0123456789ab.tmp"
    own = tmp_path / "a.bin.0123456789ab.tmp"
    for path in (other, own):
        path.write_bytes(b"some")
    download_file([f"{server.url()}/a.bin"], tmp_path / "a.bin")
    assert sorted(os.listdir(tmp_path)) == ["a.bin", other.name]


DOWNLOAD = """
import sys
from shardex.sources import download, download_file
download._AT_ONCE = 100_000

def wait(done, size):
    print(done, flush=True)
    sys.stdin.readline()

download_file([sys.argv[1]], sys.argv[2], advance=wait)
"""


def test_a_killed_download_goes_on_and_others_wait(server: FaultyServer, tmp_path: Path) -> None:
    command = [sys.executable, "-c", DOWNLOAD, f"{server.url()}/a.bin", str(tmp_path / "a.bin")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "100000\n"
        thread = threading.Thread(target=download_file, args=([f"{server.url()}/a.bin"], tmp_path / "a.bin"))
        thread.start()
        assert not (tmp_path / "a.bin").exists()
        process.send_signal(signal.SIGKILL)
    thread.join()
    assert (tmp_path / "a.bin").read_bytes() == DATA
    assert os.listdir(tmp_path) == ["a.bin"]
