"""Single requests to services: what is refused before a connection, and answers that are large, slow, short or none."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from shardex.errors import AddressError, RemoteError
from shardex.sources import RetryableError, WholeAnswer, ask_server
from shardex.sources.credentials import Settings
from tests.servers.faulty import FaultyServer


def ask(url: str, method: str = "GET", *, most: int = 100, trusted: bool = True, **options: Any) -> WholeAnswer:
    settings = Settings({"timeout": 0.3, "deadline": 0.5})
    return ask_server(method, url, settings=settings, most=most, trusted=trusted, **options)


def test_answers(web: FaultyServer) -> None:
    web.files["a"] = b"x" * 100
    answer = ask(web.url() + "/a?q=1", headers={"X-Mine": "1"})
    assert (answer.status, answer.content, answer.headers["ETag"]) == (200, b"x" * 100, '"v1"')
    assert web.headers[-1]["X-Mine"] == "1" and web.headers[-1]["Accept-Encoding"] == "identity"
    assert ask(web.url() + "/none").status == 404
    assert ask(web.url("busy") + "/a").status == 503
    assert ask(web.url("chunked") + "/a").content == b"x" * 100
    assert ask(web.url() + "/b", "PUT", content=b"sent").status == 200 and web.files["b"] == b"sent"


def test_redirects_are_not_followed(web: FaultyServer) -> None:
    web.targets["a"] = web.url() + "/b"
    assert ask(web.url("redirect") + "/a").status == 302 and web.asked["/ok/b"] == 0


@pytest.mark.parametrize("mode", ["ok", "chunked"])
def test_large_answers(web: FaultyServer, mode: str) -> None:
    web.files["a"] = b"x" * 101
    with pytest.raises(RemoteError, match="at most 100 bytes"):
        ask(web.url(mode) + "/a")


@pytest.mark.parametrize("mode", ["stall", "silent", "trickle", "short", "reset"])
def test_bad_answers(web: FaultyServer, mode: str) -> None:
    web.files["a"] = b"x" * 100
    with pytest.raises(RetryableError):
        ask(web.url(mode) + "/a")


def test_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    with pytest.raises(RetryableError, match="refused"):
        ask(f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://example.com/", "expected https://"),
        ("https://127.0.0.1/", "address of the public internet, got 127.0.0.1"),
        ("https://0x7f000001/", "address of the public internet, got 127.0.0.1"),
        ("https://[::ffff:10.0.0.1]/", "address of the public internet"),
        ("https://me:pw@example.com/", "neither user nor password"),
        ("s3://bucket/a", "expected https://"),
        ("file:///etc/passwd", "expected http"),
    ],
)
def test_urls_of_data(url: str, told: str) -> None:
    with pytest.raises(AddressError, match=told):
        ask(url, trusted=False)


def test_a_trusted_url_is_one_of_the_web() -> None:
    with pytest.raises(AddressError, match="expected http"):
        ask("s3://bucket/a")
