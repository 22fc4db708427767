"""`Atmosphere`: sessions, records, blobs, and the AppView."""

from __future__ import annotations

import pytest

from shardex.compat.atdata import AppViewRequiredError, AppViewSearchBackend, AppViewUnavailableError
from shardex.compat.atdata.atmosphere import Atmosphere, AtmosphereClient, AtUri
from shardex.errors import (
    AccessDeniedError,
    AddressError,
    ArgumentError,
    ChecksumError,
    ConflictError,
    FormatError,
    NotFoundError,
    RemoteError,
)
from tests.servers.scripted_pds import DID, HANDLE, PASSWORD, ScriptedPds

THINGS = "org.example.thing"
PUT, CREATE, GET = (f"com.atproto.repo.{name}" for name in ("putRecord", "createRecord", "getRecord"))


# -- sessions -------------------------------------------------------------------------------------------------------


def test_login_of_both_versions(server: ScriptedPds) -> None:
    """0.7 makes an object by the class, v0.2.3 logs an object in; with a server, or with the one of the account."""
    for client in (Atmosphere.login(HANDLE, PASSWORD), Atmosphere.login(HANDLE, PASSWORD, base_url=server.url)):
        assert (client.did, client.handle, client.is_authenticated) == (DID, HANDLE, True)
    for client in (AtmosphereClient(), AtmosphereClient(base_url=server.url)):
        assert not client.is_authenticated
        client.login(HANDLE, PASSWORD)
        assert client.did == DID and repr(client) == f"Atmosphere({HANDLE})"


def test_exported_session(server: ScriptedPds, atmo: Atmosphere) -> None:
    text = atmo.export_session()
    again = Atmosphere.from_session(text)
    assert (again.did, again.handle) == (DID, HANDLE)
    older = AtmosphereClient()
    older.login_with_session(text)
    older.create_record(THINGS, {"$type": THINGS}, rkey="a")
    assert Atmosphere.from_session(text.rpartition(":::")[0]).get_record(f"at://{DID}/{THINGS}/a") == {"$type": THINGS}
    with pytest.raises(ArgumentError, match="expected a session that export_session has returned"):
        Atmosphere.from_session("alice:::secret")
    assert server.asked["com.atproto.server.createSession"] == 1


def test_login_by_environment(server: ScriptedPds, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentError, match="ATDATA_HANDLE and ATDATA_PASSWORD environment variables are required"):
        Atmosphere.from_env()
    monkeypatch.setenv("ATDATA_HANDLE", HANDLE)
    monkeypatch.setenv("ATDATA_PASSWORD", PASSWORD)
    monkeypatch.setenv("ATDATA_PDS_URL", server.url)
    monkeypatch.setenv("ATDATA_APPVIEW", "did:web:app.example%3A8000")
    client = Atmosphere.from_env()
    assert client.did == DID and client.appview_url == "https://app.example:8000"


def test_no_session() -> None:
    client = Atmosphere()
    for name in ("did", "handle"):
        with pytest.raises(ValueError, match="Not authenticated"):
            getattr(client, name)
    with pytest.raises(ValueError, match="Not authenticated"):
        client.export_session()
    with pytest.raises(ValueError, match="must be authenticated"):
        client.upload_blob(b"")
    with pytest.raises(ValueError, match="Not authenticated"):
        client.create_record(THINGS, {})
    with pytest.raises(ValueError, match="must be authenticated"):
        client.list_datasets()
    with pytest.raises(AddressError, match="expected the URL of a server of ATProto"):
        Atmosphere("localhost")


def test_wrong_password(server: ScriptedPds) -> None:
    with pytest.raises(AccessDeniedError, match="Invalid identifier or password") as caught:
        Atmosphere.login(HANDLE, "wrong-secret")
    assert "wrong-secret" not in str(caught.value)


def test_a_session_of_another_account_is_refused(server: ScriptedPds) -> None:
    session = {"did": "did:plc:" + "c" * 24, "handle": HANDLE, "accessJwt": "a", "refreshJwt": "b"}
    server.script["com.atproto.server.createSession"] = [(200, session, {})]
    with pytest.raises(FormatError, match=f"expected a session of {DID}"):
        Atmosphere.login(HANDLE, PASSWORD)


@pytest.mark.parametrize("refresh", [True, False])
def test_expired_session(server: ScriptedPds, atmo: Atmosphere, refresh: bool) -> None:
    server.tokens = {text for text in server.tokens if refresh and text.startswith("refresh")}
    assert atmo.create_record(THINGS, {"$type": THINGS}, rkey="a").rkey == "a"
    again = Atmosphere.from_session(atmo.export_session())
    server.tokens = set()
    with pytest.raises(AccessDeniedError, match="ExpiredToken"):
        again.create_record(THINGS, {"$type": THINGS})


# -- records --------------------------------------------------------------------------------------------------------


def test_records(server: ScriptedPds, atmo: Atmosphere) -> None:
    uri = atmo.create_record(THINGS, {"$type": THINGS, "n": 1})
    assert uri == AtUri(DID, THINGS, uri.rkey) and atmo.get_record(str(uri)) == {"$type": THINGS, "n": 1}
    atmo.put_record(THINGS, uri.rkey, {"$type": THINGS, "n": 2})
    assert Atmosphere().get_record(AtUri(HANDLE, THINGS, uri.rkey))["n"] == 2, "everybody can read, also by the handle"
    atmo.delete_record(uri)
    with pytest.raises(NotFoundError, match="RecordNotFound"):
        atmo.get_record(uri)
    with pytest.raises(ArgumentError, match="expected a record of alice"):
        atmo.delete_record(f"at://did:plc:{'c' * 24}/{THINGS}/a")


def test_swap(server: ScriptedPds, atmo: Atmosphere) -> None:
    """A change that expects an older commit changes nothing."""
    uri = atmo.put_record(THINGS, "a", {"$type": THINGS, "n": 1}, swap_commit="commit0")
    with pytest.raises(ConflictError, match="InvalidSwap"):
        atmo.put_record(THINGS, "a", {"$type": THINGS, "n": 2}, swap_commit="commit0")
    with pytest.raises(ConflictError, match="InvalidSwap"):
        atmo.delete_record(uri, swap_commit="commit0")
    assert atmo.get_record(uri)["n"] == 1
    atmo.delete_record(uri, swap_commit="commit1")


def test_pages(server: ScriptedPds, atmo: Atmosphere) -> None:
    for number in range(8):
        kind = "science.alt.dataset.entry" if number < 5 else "ac.foundation.dataset.record"
        atmo.create_record(kind, {"$type": kind, "n": number})
    page, cursor = atmo.list_records("science.alt.dataset.entry")
    assert [one["n"] for one in page] == [0, 1, 2]
    rest = atmo.list_records("science.alt.dataset.entry", repo=HANDLE, cursor=cursor)
    assert ([one["n"] for one in rest[0]], rest[1]) == ([3, 4], None)
    assert [one["n"] for one in atmo.list_datasets()] == [*range(8)], "also those of old versions"
    with pytest.warns(UserWarning, match="there are more than 4 records"):
        assert len(Atmosphere().list_datasets(DID, limit=4)) == 4
    assert atmo.list_schemas() == atmo.list_lenses() == atmo.list_labels() == []


def test_busy_server(server: ScriptedPds, atmo: Atmosphere) -> None:
    server.script[CREATE] = [(429, {"error": "RateLimitExceeded"}, {"Retry-After": "900"})]
    with pytest.raises(RemoteError, match="nothing was changed: it allows the next request in 900 s"):
        atmo.create_record(THINGS, {"$type": THINGS})
    assert not server.records


def test_server_that_lies(server: ScriptedPds, atmo: Atmosphere) -> None:
    uri = atmo.create_record(THINGS, {"$type": THINGS, "n": 1}, rkey="a")
    stored = server.stored((THINGS, "a"))
    server.script[GET] = [(200, {**stored, "value": {"$type": THINGS, "n": 2}}, {})]
    with pytest.raises(ChecksumError, match="the server changed it"):
        atmo.get_record(uri)


def test_servers_that_documents_name_are_public(server: ScriptedPds, atmo: Atmosphere) -> None:
    uri = atmo.create_record(THINGS, {"$type": THINGS})
    server.document["service"][0]["serviceEndpoint"] = "http://127.0.0.1:1"
    assert atmo.get_record(uri), "the own server is known"
    with pytest.raises(AddressError):
        Atmosphere().get_record(uri)
    with pytest.raises(AddressError):
        Atmosphere.login(HANDLE, PASSWORD)


# -- blobs ----------------------------------------------------------------------------------------------------------


def test_blobs(server: ScriptedPds, atmo: Atmosphere) -> None:
    ref = atmo.upload_blob(b"abc", "application/x-tar", timeout=5)
    cid = ref["ref"]["$link"]
    assert (ref["$type"], ref["size"], Atmosphere().get_blob(DID, cid)) == ("blob", 3, b"abc")
    assert atmo.get_blob_url(HANDLE, cid) == f"{server.url}/xrpc/com.atproto.sync.getBlob?did={DID}&cid={cid}"
    server.blobs[cid] = b"abd"
    with pytest.raises(ChecksumError, match="the server changed it"):
        atmo.get_blob(DID, cid)


# -- the AppView ----------------------------------------------------------------------------------------------------

SEARCH = "science.alt.dataset.searchDatasets"


def test_no_appview(atmo: Atmosphere) -> None:
    assert (atmo.has_appview, atmo.appview_url, atmo.appview_did) == (False, None, None)
    for call in (lambda: atmo.search_datasets("x"), lambda: atmo.xrpc_procedure("a.b.c"), atmo.describe_service):
        with pytest.raises(AppViewRequiredError):
            call()
    with pytest.raises(ValueError, match="Invalid appview value: 'ftp://x'"):
        Atmosphere(appview="ftp://x")


def test_appview(server: ScriptedPds) -> None:
    entries = [{"uri": "at://x/y/z", "name": "digits", "tags": ["a"]}]
    client = Atmosphere(appview=server.url + "/")
    assert client.appview_url == server.url and client.appview_did == f"did:web:127.0.0.1%3A{server.server_port}"
    server.script = {SEARCH: [(200, {"entries": entries, "cursor": "c"}, {})] * 2}
    assert client.search_datasets("dig", tags=["a", "b"], limit=1000) == entries
    assert server.paths[-1].endswith(f"{SEARCH}?q=dig&tags=a&tags=b&limit=100")
    server.script["science.alt.dataset.searchLenses"] = [(200, {}, {})]
    assert client.search_lenses(source_schema="at://x/y/z") == []
    server.script["science.alt.dataset.describeService"] = [(200, {"did": "d"}, {}), (500, {}, {}), (500, {}, {})]
    assert client.describe_service() == {"did": "d"}
    backend = AppViewSearchBackend(client)
    assert backend.name == "atmosphere" and not backend.health_check()
    with pytest.raises(AppViewUnavailableError, match=f"the AppView at {server.url} is not available"):
        client.describe_service()
    with pytest.raises(ValueError, match="at most 25 URIs"):
        client.get_entries(["x"] * 26)


def test_procedures_go_through_the_own_server(server: ScriptedPds) -> None:
    client = Atmosphere.login(HANDLE, PASSWORD, appview="did:web:app.example")
    server.script["a.b.c"] = [(200, {"uri": "at://x/y/z"}, {})]
    assert client.xrpc_procedure("a.b.c", {"n": 1}) == {"uri": "at://x/y/z"}
    assert server.proxies == ["did:web:app.example#atdata_appview"]
    server.script["a.b.c"] = [(502, {}, {})] * 2
    with pytest.raises(AppViewUnavailableError):
        client.xrpc_procedure("a.b.c")
