"""Which URLs are opened and refused, and what untrusted URLs can reach."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.errors import AddressError, PathError, ShardexError, UnsafeError
from shardex.sources import is_url, open_source, place_of
from shardex.sources.guarded_http import check_untrusted, is_public
from shardex.sources.memory import MemorySource
from shardex.sources.object_store import ObjectSource
from shardex.sources.url import SCHEMES


def test_is_url() -> None:
    assert [is_url(text) for text in ("s3://b/k", "memory://x", "/a/b", "C:\\x", "a", "pipe:ls")] == [True] * 2 + [
        False
    ] * 4


@pytest.mark.parametrize(
    "url",
    [
        "pipe:cat /etc/passwd",
        "pipe://cat",
        "file:///etc/passwd",
        "gopher://x/",
        "ftp://x/",
        "javascript://x",
        "data://x",
        "a/path",
        "",
        "://x",
        "s3:/bucket",
    ],
)
def test_other_schemes_are_refused(url: str) -> None:
    for trusted in (True, False):
        with pytest.raises(
            AddressError, match="expected an address that begins with file://, memory://, s3://"
        ) as caught:
            open_source(url, trusted=trusted)
        assert isinstance(caught.value, PathError)
        assert isinstance(caught.value, UnsafeError)


def test_errors_show_no_password() -> None:
    with pytest.raises(AddressError, match=r"'ftp://\*\*\*@host/'"):
        open_source("ftp://me:secret@host/")


@pytest.mark.parametrize("scheme", sorted({*SCHEMES} - {"at"}))
def test_open_source_by_scheme(scheme: str) -> None:
    for url in (f"{scheme}://name/sets", f"{scheme}://name/sets//", f"{scheme.upper()}://name/sets"):
        place = open_source(url)
        assert isinstance(place, MemorySource if scheme == "memory" else ObjectSource)
        assert place.url == f"{scheme}://name/sets"


@pytest.mark.parametrize("url", ["s3://", "https://", "gs:///"])
def test_a_url_needs_a_bucket_or_host(url: str) -> None:
    with pytest.raises(AddressError, match="expected the name of a bucket or a host"):
        open_source(url)


# -- untrusted URLs ---------------------------------------------------------------------------------------------------

PRIVATE = [
    "127.0.0.1",
    "127.0.0.1:8080",
    "127.1",
    "127.255.255.254",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "017700000001",
    "0177.0.0.1",
    "0",
    "0.0.0.0",
    "localhost",
    "LOCALHOST",
    "localhost.",
    "10.0.0.1",
    "172.16.5.4",
    "192.168.1.1",
    "100.64.0.1",
    "169.254.169.254",
    "0xa9fea9fe",
    "224.0.0.1",
    "255.255.255.255",
    "192.0.2.1",
    "198.18.0.1",
    "240.0.0.1",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[0:0:0:0:0:ffff:a9fe:a9fe]",
    "[fe80::1]",
    "[fc00::1]",
    "[fd00:ec2::254]",
    "[ff02::1]",
    "[2002:7f00:1::]",
    "[64:ff9b::7f00:1]",
    "[::127.0.0.1]",
    "192.88.99.1",
    "192.0.0.8",
    "198.51.100.7",
    "203.0.113.1",
    "[fec0::1]",
    "[3fff::1]",
    "[3fff:fff:ffff::1]",
    "[64:ff9b:1::808:808]",
    "[100::1]",
    "[5f00::1]",
    "[2001:db8::1]",
    "[2001:2::1]",
    "[2001:20::1]",
    "[2001:0:7f00:1::]",
    "[2002:808:808::1]",
    "[2606:4700::5efe:7f00:1]",
    "[::ffff:192.88.99.1]",
    "[64:ff9b::192.88.99.1]",
]


@pytest.mark.parametrize("host", PRIVATE)
def test_no_spelling_of_a_private_address_is_opened(host: str) -> None:
    for scheme in ("http", "https"):
        with pytest.raises(
            AddressError, match=r"expected an address of the public internet|a host that has an address"
        ):
            open_source(f"{scheme}://{host}/data", trusted=False)


@pytest.mark.parametrize(
    "url",
    [
        "https://user:pw@8.8.8.8/",
        "https://8.8.8.8@127.0.0.1/",
        "http://8.8.8.8\\@127.0.0.1/",
        "http://8.8.8.8 /",
        "http://8.8.8.8/\r\nHost: x",
        "http://[::1/",
        "http://8.8.8.8:99999/",
        "http:///path",
        "s3://bucket@host/x",
        "s3://bucket:80/x",
        "s3://buck%65t/x",
        "s3://bucket/x?endpoint=http://127.0.0.1",
        "az://bucket/x#y",
        "gs://-bucket/x",
        "memory://x/y",
        "file:///etc/passwd",
    ],
)
def test_untrusted_urls_that_are_refused(url: str) -> None:
    with pytest.raises(AddressError):
        open_source(url, trusted=False)


@pytest.mark.parametrize(
    "url", ["http://8.8.8.8/x", "https://[2606:4700::1111]:8443/x", "s3://my-bucket.x_y/a", "gs://b/c"]
)
def test_untrusted_urls_that_are_opened(url: str) -> None:
    assert check_untrusted(url) == url
    assert open_source(url, trusted=False).url == url


@given(st.ip_addresses(v=4, network="0.0.0.0/0"))
def test_embedded_ipv4_addresses_are_checked(address: Any) -> None:
    plain = is_public(str(address))
    assert is_public(f"::ffff:{address}") == plain
    assert is_public(f"64:ff9b::{address}") == plain


def test_a_host_that_changes_its_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first lookup is public, as an attacker's would be; the address is checked again when it is connected to."""
    answers = iter(["8.8.8.8", "127.0.0.1"])

    def lookup(host: str, port: int, **_: object) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers, "127.0.0.1"), port))]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    place = open_source("http://rebinding.example/data", trusted=False)
    with pytest.raises(AddressError, match=r"public internet, got 127\.0\.0\.1"):
        place.stat("a")


SCENE = """
import pickle, sys
from tests.servers.faulty import faulty_server
from shardex.errors import *
from shardex.sources import ByteRange, open_source, storage

DATA = bytes(range(256)) * 200
def raises(kind, words, work):
    try: work()
    except kind as error: assert words in str(error), error
    else: raise AssertionError(f"expected {kind}")

with faulty_server("93.184.216.34") as one, faulty_server("93.184.216.35") as two, faulty_server() as inner:
    for server in (one, two, inner):
        server.files["a"] = DATA
        storage(server.url("")[:-1], timeout=10, deadline=60, retries=2)
    storage(one.url("")[:-1], timeout=10, deadline=60, retries=2, token="only-for-one")
    for mode in ("stall1", "silent"):
        storage(one.url(mode), timeout=0.5, deadline=60, retries=2)

    place = open_source(one.url(), trusted=False)
    assert bytes(place.load("a")) == DATA
    wanted = [ByteRange(5, 10), ByteRange(50_000, 100), ByteRange(0, 0)]
    assert [bytes(view) for view in place.read("a", wanted)] == [DATA[w.begin:w.end] for w in wanted]
    assert one.headers[-1]["Authorization"] == "Bearer only-for-one"
    again = pickle.loads(pickle.dumps(place))
    assert again._trusted is False and bytes(again.load("a")) == DATA
    raises(NotFoundError, "missing", lambda: place.load("missing"))

    for mode in "error1 reset1 short1 less1 clipped1 shifted1 whole1 stall1 nohead untagged".split():
        assert bytes(open_source(one.url(mode), trusted=False).load("a")) == DATA, mode
    for mode in ("error", "reset", "short", "less", "shifted", "whole", "silent"):
        raises(RemoteReadError, "in 3 attempts", lambda: open_source(one.url(mode), trusted=False).load("a"))
    raises(RemoteChangedError, "v2", lambda: open_source(one.url("changed"), trusted=False).load("a"))
    raises(AccessDeniedError, "403", lambda: open_source(one.url("denied"), trusted=False).load("a"))

    def follow(target):
        one.targets["a"] = target
        return bytes(open_source(one.url("redirect"), trusted=False).load("a"))
    assert follow(one.url() + "/a") == DATA
    assert follow("/ok/a") == DATA
    assert follow(two.url() + "/a") == DATA
    assert "Authorization" not in two.headers[-1]
    for target in (inner.url() + "/a", inner.url().replace("127.0.0.1", "0x7f000001") + "/a", "http://[::ffff:127.0.0.1]/"):
        raises(AddressError, "public internet", lambda: follow(target))
    raises(AddressError, "expected a redirect to http://", lambda: follow("https://93.184.216.34/a"))
    for target in ("file:///etc/passwd", "ftp://93.184.216.34/a", "http://me:pw@93.184.216.34/a"):
        raises(AddressError, "in a URL that data names", lambda: follow(target))
    raises(RemoteError, "at most 5 redirects", lambda: follow(one.url("redirect") + "/a"))
    assert not inner.headers
print("done")
"""


def test_an_untrusted_server_cannot_reach_private_addresses() -> None:
    """Runs in a network namespace where public addresses belong to this machine."""
    tools = shutil.which("unshare") and shutil.which("ip")
    network = "ip link set lo up && ip addr add 93.184.216.34/32 dev lo && ip addr add 93.184.216.35/32 dev lo"
    if not tools or subprocess.run(["unshare", "-n", "sh", "-c", network], capture_output=True, check=False).returncode:
        pytest.skip("needs a network namespace")
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", f'{network} && exec "$0" -c "$1"', sys.executable, SCENE],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.stdout == "done\n", done.stderr


def test_place_of_a_local_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "a", str(tmp_path / "a"), f"file://{tmp_path}/a", "a", "~/a"):
        place = place_of(path)
        assert not place.is_remote and place.url == str(tmp_path / "a")


def test_file_urls(tmp_path: Path) -> None:
    path = tmp_path / "a b%20ü"
    for url in (
        path.as_uri(),
        path.as_uri().replace("file://", "file://localhost"),
        path.as_uri()[:5] + quote(str(path)),
    ):
        assert place_of(url).url == str(path)
    for url in ("file://js", "file://js/x", "file://~/x", "file://"):
        with pytest.raises(
            AddressError, match=r"expected an absolute path after file://.* give a relative path without"
        ):
            place_of(url)


@pytest.mark.parametrize(("url", "use"), [("s3a://b/x", "s3"), ("gcs://b/x", "gs"), ("abfs://c@a.example/x", "az")])
def test_schemes_of_other_libraries(url: str, use: str) -> None:
    with pytest.raises(AddressError, match=f": use {use}://$"):
        open_source(url)


def test_place_of_a_url() -> None:
    place_of("memory://test-places/a/").put("x", b"1")
    place = place_of("memory://test-places/a")
    assert place.is_remote and place.paths() == ["x"]


def test_place_of_refuses_unknown_schemes_and_commands() -> None:
    with pytest.raises(ShardexError, match="expected an address that begins with"):
        place_of("gopher://x")
    for command in ("pipe:cat x", "pipe:curl http://x"):
        with pytest.raises(UnsafeError, match="never runs commands"):
            place_of(command)


def test_an_address_of_the_hub_says_what_opens_it() -> None:
    with pytest.raises(AddressError, match=r"with file://, .*got 'hf://d.*: load it with the package datasets, "):
        open_source("hf://datasets/squad")
