"""Calls of ATProto against a server that obeys a script: sessions, pages, blobs, busy servers, lies, and accounts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any

import pytest

from shardex import storage
from shardex.catalog import cid_of
from shardex.catalog.cid import RAW
from shardex.catalog.xrpc import MOST_BLOB_BYTES, Account, XrpcClient, find_account
from shardex.errors import (
    AccessDeniedError,
    AddressError,
    ArgumentError,
    ChecksumError,
    ConflictError,
    FormatError,
    NotFoundError,
    RemoteError,
    RemoteReadError,
    RemoteWriteError,
)
from shardex.sources.credentials import settings_for
from tests.servers.scripted_pds import DID, HANDLE, PASSWORD, ScriptedPds, scripted_pds

THINGS = "org.example.thing"
GET, LIST, WRITE = (f"com.atproto.repo.{name}" for name in ("getRecord", "listRecords", "applyWrites"))
COMMIT = "com.atproto.sync.getLatestCommit"


@pytest.fixture
def server() -> Iterator[ScriptedPds]:
    with scripted_pds() as server:
        storage("at://", service=server.url, directory=server.url, timeout=2, deadline=3, retries=2)
        yield server
        storage("at://")


@pytest.fixture
def client(server: ScriptedPds) -> XrpcClient:
    return XrpcClient(server.url, settings_for("at://"), trusted=True)


def write(client: XrpcClient, *keys: str) -> None:
    writes = [
        {"$type": f"{WRITE}#create", "collection": THINGS, "rkey": key, "value": {"$type": THINGS, "n": len(key)}}
        for key in keys
    ]
    client.procedure(WRITE, {"repo": DID, "writes": writes})


# -- records --------------------------------------------------------------------------------------------------


def test_records(server: ScriptedPds, client: XrpcClient) -> None:
    assert client.login(HANDLE, PASSWORD) == DID
    write(client, "a", "bb")
    stored = client.get_record(DID, THINGS, "bb")
    assert stored is not None and (stored.value["n"], stored.key) == (2, "bb")
    assert stored.uri == f"at://{DID}/{THINGS}/bb"
    assert client.get_record(DID, THINGS, "c") is None


def test_pages(server: ScriptedPds, client: XrpcClient) -> None:
    client.login(HANDLE, PASSWORD)
    keys = [f"k{number}" for number in range(10)]
    write(client, *keys)
    assert [one.key for one in client.list_records(DID, THINGS)] == keys and server.asked[LIST] == 4


def test_pages_without_end(server: ScriptedPds, client: XrpcClient) -> None:
    client.login(HANDLE, PASSWORD)
    write(client, "a")
    page = {"records": [server.stored((THINGS, "a"))], "cursor": "same"}
    server.script[LIST] = [(200, page, {})] * 3
    with pytest.raises(FormatError, match="got the same one again"):
        list(client.list_records(DID, THINGS))


@pytest.mark.parametrize(
    ("lie", "error", "told"),
    [
        (
            {"cid": "bafyreigbtj4x7ip5legnfznufuopl4sg4knzc2cof6duas4b3q2fy6swua"},
            ChecksumError,
            "the server changed it",
        ),
        ({"value": {"$type": THINGS, "n": 2}}, ChecksumError, "the server changed it"),
        ({"cid": "Qm"}, FormatError, "expected a CID"),
        ({"uri": f"at://{DID}/{THINGS}/b"}, FormatError, "expected the record at://.*/a, got"),
        ({"value": 5}, FormatError, "expected a record with uri, cid and value"),
        ({"value": {"x": 2**70}}, FormatError, "at most 64 bits"),
    ],
)
def test_server_that_lies(server: ScriptedPds, client: XrpcClient, lie: Any, error: type[Exception], told: str) -> None:
    client.login(HANDLE, PASSWORD)
    write(client, "a")
    server.script[GET] = [(200, {**server.stored((THINGS, "a")), **lie}, {})]
    with pytest.raises(error, match=told):
        client.get_record(DID, THINGS, "a")


def test_values_of_all_kinds_fit_their_cids(server: ScriptedPds, client: XrpcClient) -> None:
    link = cid_of(b"x", RAW)
    value = {"$type": THINGS, "blob": {"ref": {"$link": link}}, "b": {"$bytes": "AQI"}, "t": ["ü", None, True, -5]}
    server.records[THINGS, "a"] = value
    stored = client.get_record(DID, THINGS, "a")
    assert stored is not None and stored.value == value


# -- blobs ----------------------------------------------------------------------------------------------------


def test_blobs(server: ScriptedPds, client: XrpcClient) -> None:
    client.login(HANDLE, PASSWORD)
    blob = client.upload_blob(b"bytes", "application/x-tar")
    cid = blob["ref"]["$link"]
    assert client.get_blob(DID, cid) == b"bytes"
    with pytest.raises(RemoteError, match="at most 4 bytes"):
        client.get_blob(DID, cid, most=4)
    server.blobs[cid] = b"other"
    with pytest.raises(ChecksumError, match=f"expected content with CID {cid}"):
        client.get_blob(DID, cid)
    with pytest.raises(ArgumentError, match="expected a blob of at most 52,428,800 bytes"):
        client.upload_blob(bytes(MOST_BLOB_BYTES + 1))


# -- answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["Retry-After", "RateLimit-Reset", "date"])
def test_busy_server(server: ScriptedPds, client: XrpcClient, header: str) -> None:
    text = {"Retry-After": "1", "RateLimit-Reset": str(int(time.time()) + 1)}.get(header) or formatdate(
        time.time() + 1, usegmt=True
    )
    server.script[COMMIT] = [(429, {}, {"Retry-After" if header == "date" else header: text})]
    assert client.query(COMMIT)["cid"] == "commit0" and server.asked[COMMIT] == 2


def test_server_that_is_busy_for_long(server: ScriptedPds, client: XrpcClient) -> None:
    client.login(HANDLE, PASSWORD)
    server.script[WRITE] = [(429, {"error": "RateLimitExceeded"}, {"Retry-After": "3000"})]
    with pytest.raises(RemoteError, match="nothing was changed: it allows the next request in 3000 s"):
        write(client, "a")
    assert server.asked[WRITE] == 1


@pytest.mark.parametrize(
    ("answer", "error", "told"),
    [
        ((302, {}, {"Location": "http://169.254.169.254/"}), RemoteError, "got a redirect, which is not followed"),
        ((200, b"<html>", {}), FormatError, "expected JSON"),
        ((200, [1], {}), FormatError, "expected JSON"),
        ((200, b"[" * 100_000, {}), FormatError, "expected JSON"),
        ((400, {"error": "InvalidRequest", "message": "Could not find repo: x"}, {}), NotFoundError, "find repo"),
        ((403, {}, {}), AccessDeniedError, "set the password of the account"),
        ((413, {"error": "PayloadTooLarge"}, {}), RemoteError, "larger than this server allows"),
        ((400, {"error": "InvalidSwap", "message": "at x"}, {}), ConflictError, "InvalidSwap: at x"),
        ((500, b"oops", {}), RemoteError, "getLatestCommit: 500"),
    ],
)
def test_answers_that_say_no(
    server: ScriptedPds, client: XrpcClient, answer: Any, error: type[Exception], told: str
) -> None:
    server.script[COMMIT] = [answer]
    with pytest.raises(error, match=told):
        client.query(COMMIT)
    assert server.asked[COMMIT] == 1


def test_broken_connections(server: ScriptedPds, client: XrpcClient) -> None:
    client.login(HANDLE, PASSWORD)
    server.script[COMMIT] = ["reset", "reset", None]
    assert client.query(COMMIT)["cid"] == "commit0"
    server.script = {COMMIT: ["reset"] * 3, WRITE: ["reset"] * 3}
    with pytest.raises(RemoteReadError, match="expected an answer, the last was: RemoteDisconnected"):
        client.query(COMMIT)
    with pytest.raises(RemoteWriteError, match="whether it was done is not known"):
        write(client, "a")


# -- sessions -------------------------------------------------------------------------------------------------


def test_wrong_password(client: XrpcClient) -> None:
    with pytest.raises(AccessDeniedError, match="set the password of the account") as caught:
        client.login(HANDLE, "wrong-password")
    assert "wrong-password" not in str(caught.value)


def test_no_session(client: XrpcClient) -> None:
    with pytest.raises(AccessDeniedError, match="AuthMissing"):
        write(client, "a")


@pytest.mark.parametrize("refresh", [True, False])
def test_expired_session(server: ScriptedPds, client: XrpcClient, refresh: bool) -> None:
    """It is renewed by the refresh token, or by the password if that one has expired, too."""
    client.login(HANDLE, PASSWORD)
    server.tokens -= {text for name, text in client._tokens.items() if name == "accessJwt" or not refresh}
    write(client, "a")
    assert server.asked["com.atproto.server.createSession"] == (1 if refresh else 2)
    assert client.get_record(DID, THINGS, "a") is not None


def test_session_without_tokens(server: ScriptedPds, client: XrpcClient) -> None:
    server.script["com.atproto.server.createSession"] = [(200, {"did": DID, "accessJwt": "x"}, {})]
    with pytest.raises(FormatError, match="a session with refreshJwt, got none"):
        client.login(HANDLE, PASSWORD)


# -- accounts -------------------------------------------------------------------------------------------------


def test_account_of_a_handle(server: ScriptedPds) -> None:
    assert find_account(HANDLE) == find_account(DID) == Account(DID, server.url, trusted=True)


def test_handles_that_are_none(server: ScriptedPds) -> None:
    for wrong in ("alice", "a..b", "-a.com", "a_b.com", "alice.com:80", "x" * 300 + ".com", "did:key:abc", "did:plc:x"):
        with pytest.raises(AddressError, match=r"expected a (handle|DID)"):
            find_account(wrong)
    with pytest.raises(NotFoundError, match=r"expected a handle of an account.*at://nobody.example.com"):
        find_account("nobody.example.com")
    server.script["com.atproto.identity.resolveHandle"] = ["reset"] * 3
    with pytest.raises(RemoteReadError, match="expected an answer"):
        find_account(HANDLE)


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        ({"alsoKnownAs": ["at://mallory.example.com"]}, AccessDeniedError, "expected an account that has the handle"),
        ({"alsoKnownAs": None}, AccessDeniedError, "expected an account that has the handle"),
        ({"id": "did:plc:" + "b" * 24}, FormatError, "expected the document of"),
        ({"service": []}, FormatError, "to name a server of the account"),
        ({"service": [{"id": "#atproto_pds", "serviceEndpoint": 5}]}, FormatError, "to name a server of the account"),
    ],
)
def test_wrong_documents(server: ScriptedPds, change: Any, error: type[Exception], told: str) -> None:
    server.document.update(change)
    with pytest.raises(error, match=told):
        find_account(HANDLE)


@pytest.mark.parametrize(
    "elsewhere", ["http://127.0.0.1:1", "https://127.0.0.1:1", "https://[::1]", "http://example.com", "file:///etc"]
)
def test_servers_that_documents_name_are_public(server: ScriptedPds, elsewhere: str) -> None:
    server.document["service"][0]["serviceEndpoint"] = elsewhere
    account = find_account(HANDLE)
    assert not account.trusted
    with pytest.raises(AddressError):
        XrpcClient(account.server, settings_for("at://"), trusted=account.trusted).query(COMMIT)


def test_accounts_of_the_web_are_public(server: ScriptedPds) -> None:
    with pytest.raises(AddressError, match="address of the public internet"):
        find_account("did:web:localhost")
