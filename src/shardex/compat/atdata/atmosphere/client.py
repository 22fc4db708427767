"""`Atmosphere`: records and blobs of an account of ATProto, by the XRPC client of the core.

Servers that the user names are trusted: ``base_url``, ``appview``, and those in the settings of ``at://`` in
`shardex.storage`. Servers of other accounts are those that their documents name, at public addresses. Each record and
blob is checked against its CID.
"""

import os
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self
from urllib.parse import unquote, urlencode, urlsplit

from shardex.catalog import Account, StoredRecord, XrpcClient, find_account
from shardex.compat.atdata._exceptions import AppViewRequiredError, AppViewUnavailableError
from shardex.compat.atdata.atmosphere._types import LEXICON_NAMESPACE, AtUri
from shardex.errors import (
    AddressError,
    ArgumentError,
    ConflictError,
    FormatError,
    NotFoundError,
    RemoteError,
    RemoteReadError,
    RemoteWriteError,
)
from shardex.sources import credentials

__all__ = ["Atmosphere", "AtmosphereClient"]

_OLD = {"schema": "sampleSchema", "entry": "record", "lens": "lens"}
"""The names that collections had in the namespace `_OLD_NAMESPACE`, in v0.2.3."""
_OLD_NAMESPACE = "ac.foundation.dataset"
_SEPARATOR = ":::"
_MOST_ENTRIES, _PAGE = 25, 100


class _OnClassOrObject:
    """A method of the class that makes an object and logs it in; of an object, that logs this one in (v0.2.3)."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self._work = work
        self.__doc__ = work.__doc__

    def __get__(self, instance: Any, owner: type) -> Callable[..., Any]:
        if instance is not None:
            return partial(self._work, instance)

        def made(*args: Any, base_url: str | None = None, appview: str | None = None, **options: Any) -> Any:
            return self._work(owner(base_url, appview=appview), *args, **options)

        made.__doc__ = self.__doc__
        return made


class Record(dict[str, Any]):
    """The content of a record, with its address and its CID."""

    def __init__(self, stored: StoredRecord) -> None:
        super().__init__(stored.value)
        self.uri, self.cid = stored.uri, stored.cid


class Atmosphere:
    """Records and blobs on ATProto; `login` is needed to write, and everybody can read.

    ``Atmosphere.login(handle, password)`` returns an object for an account, and ``client.login(handle, password)`` logs
    an object in, as in v0.2.3. Without `base_url` the server is the one that the document of the account names.
    """

    def __init__(
        self, base_url: str | None = None, *, appview: str | None = None, _client: XrpcClient | None = None
    ) -> None:
        self._base = None if base_url is None else _server(base_url, "at://")
        self._client: XrpcClient | None = None
        self._accounts: dict[str, Account] = {}
        self._appview: XrpcClient | None = None
        self._appview_did: str | None = None
        if appview is not None:
            self._configure_appview(appview)
        if _client is not None:
            self._with_session(_client, trusted=True)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.handle if self.is_authenticated else ''})"

    # -- sessions -----------------------------------------------------------------------------------------------

    @_OnClassOrObject
    def login(self, handle: str, password: str) -> "Atmosphere":
        """Log in to an account with its password, best an app password."""
        account = None if self._base is not None else find_account(handle)
        client = self._base if account is None else client_of(account)
        assert client is not None
        did = client.login(handle, password)
        if account is not None and did != account.did:
            raise FormatError(f"{account.server}: expected a session of {account.did}, got one of {did!r:.100}")
        return self._with_session(client, trusted=account is None or account.trusted)

    def _with_session(self, client: XrpcClient, *, trusted: bool) -> Self:
        self._client = client
        account = Account(self.did, client.server, trusted)
        self._accounts = {self.did: account, self.handle: account}
        return self

    @_OnClassOrObject
    def from_session(self, session_string: str) -> "Atmosphere":
        """Go on with a session that `export_session` has returned."""
        handle, did, access, refresh, *server = session_string.split(_SEPARATOR) + [""] * 4
        if not refresh or not did.startswith("did:"):
            raise ArgumentError("expected a session that export_session has returned, got another text")
        account = None if self._base is not None or server[0] else find_account(did)
        client = client_of(account) if account else self._base or _server(server[0], f"at://{did}")
        client.resume({"handle": handle, "did": did, "accessJwt": access, "refreshJwt": refresh})
        return self._with_session(client, trusted=account is None or account.trusted)

    login_with_session = from_session
    """The name in v0.2.3."""

    @classmethod
    def from_env(cls, *, base_url: str | None = None) -> Self:
        """Log in with ``ATDATA_HANDLE`` and ``ATDATA_PASSWORD``; optional: ``ATDATA_PDS_URL``, ``ATDATA_APPVIEW``."""
        handle, password = (os.environ.get(name) for name in ("ATDATA_HANDLE", "ATDATA_PASSWORD"))
        if not handle or not password:
            raise OSError("ATDATA_HANDLE and ATDATA_PASSWORD environment variables are required")
        made = cls(os.environ.get("ATDATA_PDS_URL", base_url), appview=os.environ.get("ATDATA_APPVIEW"))
        made.login(handle, password)
        return made

    def export_session(self) -> str:
        """Return the session as text, for `from_session`; it is a secret."""
        session = self._session
        known = [session[name] for name in ("handle", "did", "accessJwt", "refreshJwt")]
        return _SEPARATOR.join([*known, self._writer.server])

    @property
    def is_authenticated(self) -> bool:
        """Whether there is a session."""
        return self._client is not None and bool(self._client.session)

    @property
    def did(self) -> str:
        """The DID of the account."""
        return self._session["did"]

    @property
    def handle(self) -> str:
        """The handle of the account."""
        return self._session["handle"]

    @property
    def _session(self) -> dict[str, str]:
        if not self.is_authenticated:
            raise ArgumentError("Not authenticated: expected a session, log in with Atmosphere.login(handle, password)")
        return self._writer.session

    def _ensure_authenticated(self) -> None:
        if not self.is_authenticated:
            raise ArgumentError(
                "Client must be authenticated to perform this operation: log in with Atmosphere.login(handle, password)"
            )

    @property
    def _writer(self) -> XrpcClient:
        self._ensure_authenticated()
        assert self._client is not None
        return self._client

    # -- the AppView --------------------------------------------------------------------------------------------

    def _configure_appview(self, appview: str) -> None:
        parts = urlsplit(appview)
        if appview.startswith("did:web:"):
            url, did = f"https://{unquote(appview.removeprefix('did:web:'))}", appview
        elif parts.scheme in ("https", "http") and parts.hostname:
            url, port = appview.rstrip("/"), f"%3A{parts.port}" if parts.port else ""
            did = f"did:web:{parts.hostname}{port}"
        else:
            raise ArgumentError(f"Invalid appview value: {appview!r}. Expected an HTTPS URL or did:web: DID.")
        self._appview, self._appview_did = _server(url, "at://"), did

    @property
    def has_appview(self) -> bool:
        """Whether there is an AppView."""
        return self._appview is not None

    @property
    def appview_url(self) -> str | None:
        """The URL of the AppView."""
        return None if self._appview is None else self._appview.server

    @property
    def appview_did(self) -> str | None:
        """The DID of the AppView."""
        return self._appview_did

    def xrpc_query(self, nsid: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer of the AppView to a query; it needs no session."""
        if self._appview is None:
            raise AppViewRequiredError(nsid)
        try:
            return self._appview.query(nsid, **(params or {}))
        except RemoteReadError as error:
            raise AppViewUnavailableError(self._appview.server, str(error)) from error

    def xrpc_procedure(self, nsid: str, input: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer of the AppView to a procedure, which the server of the account passes on."""
        if self._appview is None:
            raise AppViewRequiredError(nsid)
        try:
            return self._writer.procedure(nsid, input or {}, proxy=f"{self._appview_did}#atdata_appview")
        except (RemoteReadError, RemoteWriteError) as error:
            raise AppViewUnavailableError(self._appview.server, str(error)) from error

    # -- accounts -----------------------------------------------------------------------------------------------

    def resolve_did(self, handle_or_did: str) -> str:
        """Return the DID of a handle; a DID is returned as it is."""
        return handle_or_did if handle_or_did.startswith("did:") else self.account_of(handle_or_did).did

    def account_of(self, name: str) -> Account:
        """Return the account of a handle or a DID, and its server."""
        if name not in self._accounts:
            self._accounts[name] = self._find_account(name)
        return self._accounts[name]

    def _find_account(self, name: str) -> Account:
        """Return the account of a handle or a DID: one of the server that the user has named, or any other one."""
        if self._base is not None:
            try:
                did = str(self._base.query("com.atproto.repo.describeRepo", repo=name).get("did"))
                return Account(did, self._base.server, trusted=True)
            except (NotFoundError, RemoteError):
                pass  # another server has it
        return find_account(name)

    # -- records ------------------------------------------------------------------------------------------------

    def create_record(
        self, collection: str, record: Mapping[str, Any], *, rkey: str | None = None, validate: bool = False
    ) -> AtUri:
        """Create a record, and return its address; without `rkey` the server makes a key."""
        body = {"repo": self.did, "collection": collection, "record": record, "validate": validate}
        body |= {} if rkey is None else {"rkey": rkey}
        return AtUri.parse(self._writer.procedure("com.atproto.repo.createRecord", body)["uri"])

    def put_record(
        self,
        collection: str,
        rkey: str,
        record: Mapping[str, Any],
        *,
        validate: bool = False,
        swap_commit: str | None = None,
    ) -> AtUri:
        """Create or replace a record; with `swap_commit` only if this is the last commit, or raise `ConflictError`."""
        body = {"repo": self.did, "collection": collection, "rkey": rkey, "record": record, "validate": validate}
        return AtUri.parse(self._swap("com.atproto.repo.putRecord", body, swap_commit)["uri"])

    def get_record(self, uri: str | AtUri) -> dict[str, Any]:
        """Return the content of a record, of any account."""
        place = AtUri.parse(uri) if isinstance(uri, str) else uri
        account = self.account_of(place.authority)
        found = client_of(account).get_record(account.did, place.collection, place.rkey)
        if found is None:
            raise NotFoundError(2, "RecordNotFound: expected a record, got none", str(place))
        return Record(found)

    def delete_record(self, uri: str | AtUri, *, swap_commit: str | None = None) -> None:
        """Delete a record of the account; with `swap_commit` only if this is the last commit."""
        place = AtUri.parse(uri) if isinstance(uri, str) else uri
        if place.authority not in (self.did, self.handle):
            raise ArgumentError(f"expected a record of {self.handle} ({self.did}), got {place}")
        body = {"repo": self.did, "collection": place.collection, "rkey": place.rkey}
        self._swap("com.atproto.repo.deleteRecord", body, swap_commit)

    def _swap(self, method: str, body: dict[str, Any], commit: str | None) -> dict[str, Any]:
        try:
            return self._writer.procedure(method, body | ({"swapCommit": commit} if commit else {}))
        except ConflictError as error:
            error.add_note(f"expected {commit} to be the last commit: look at the record, and try again")
            raise

    def list_records(
        self, collection: str, *, repo: str | None = None, limit: int = _PAGE, cursor: str | None = None
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Return a page of at most 100 records of an account, and the cursor of the next page."""
        if repo is None:
            self._ensure_authenticated()
        account = self.account_of(self.did if repo is None else repo)
        client = client_of(account)
        found, following = client.page_of_records(account.did, collection, cursor or "", min(limit, _PAGE))
        return [Record(one) for one in found], following or None

    def _list_collection(self, kind: str, repo: str | None, limit: int) -> list[dict[str, Any]]:
        """Return records of a collection, and of the one that it was in old versions; warn if there are more."""
        found: list[dict[str, Any]] = []
        for collection in collections_of(kind):
            cursor: str | None = None
            while True:
                page, cursor = self.list_records(collection, repo=repo, cursor=cursor)
                found += page
                if len(found) > limit:
                    warnings.warn(f"there are more than {limit} records of {collection}: raise limit", stacklevel=3)
                    return found[:limit]
                if not cursor or not page:
                    break
        return found

    def list_schemas(self, repo: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Return the schemas of an account, by default of the own one."""
        return self._list_collection("schema", repo, limit)

    def list_datasets(self, repo: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Return the datasets of an account, by default of the own one."""
        return self._list_collection("entry", repo, limit)

    def list_lenses(self, repo: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Return the lenses of an account, by default of the own one."""
        return self._list_collection("lens", repo, limit)

    def list_labels(self, repo: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Return the labels of an account, by default of the own one."""
        return self._list_collection("label", repo, limit)

    # -- blobs --------------------------------------------------------------------------------------------------

    def upload_blob(
        self, data: bytes, mime_type: str = "application/octet-stream", *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Store bytes on the server of the account, and return the reference for a record.

        `timeout` is not used: the time that an upload may take grows with its size (`deadline` of `shardex.storage`).
        """
        return self._writer.upload_blob(data, mime_type)

    def get_blob(self, did: str, cid: str) -> bytes:
        """Return the bytes of a blob, which fit its CID."""
        return client_of(self.account_of(did)).get_blob(self.resolve_did(did), cid)

    def get_blob_url(self, did: str, cid: str) -> str:
        """Return the URL of a blob."""
        account = self.account_of(did)
        return f"{account.server}/xrpc/com.atproto.sync.getBlob?{urlencode({'did': account.did, 'cid': cid}, safe=':')}"

    # -- queries of the AppView ---------------------------------------------------------------------------------

    def search_datasets(
        self,
        q: str,
        *,
        tags: list[str] | None = None,
        schema_ref: str | None = None,
        repo: str | None = None,
        limit: int = 25,
    ) -> list[dict[str, Any]]:
        """Return the datasets that the AppView finds."""
        return self._found(
            "searchDatasets", "entries", q=q, tags=tags, schemaRef=schema_ref, repo=repo, limit=min(limit, 100)
        )

    def search_lenses(
        self, *, source_schema: str | None = None, target_schema: str | None = None, limit: int = 25
    ) -> list[dict[str, Any]]:
        """Return the lenses between these schemas that the AppView finds."""
        return self._found(
            "searchLenses", "lenses", sourceSchema=source_schema, targetSchema=target_schema, limit=min(limit, 100)
        )

    def describe_service(self) -> dict[str, Any]:
        """Return what the AppView says about itself."""
        return self.xrpc_query(f"{LEXICON_NAMESPACE}.describeService")

    def get_entries(self, uris: list[str]) -> list[dict[str, Any]]:
        """Return datasets by their addresses, from the AppView."""
        if len(uris) > _MOST_ENTRIES:
            raise ArgumentError(f"getEntries supports at most {_MOST_ENTRIES} URIs per call, got {len(uris)}")
        return self._found("getEntries", "entries", uris=uris)

    def get_entry_stats(self, uri: str, period: str = "week") -> dict[str, Any]:
        """Return how often a dataset was seen in a "day", "week" or "month", from the AppView."""
        return self.xrpc_query(f"{LEXICON_NAMESPACE}.getEntryStats", {"uri": uri, "period": period})

    def _found(self, method: str, name: str, **parameters: Any) -> list[dict[str, Any]]:
        given = {key: value for key, value in parameters.items() if value is not None}
        found = self.xrpc_query(f"{LEXICON_NAMESPACE}.{method}", given).get(name, [])
        return found if isinstance(found, list) else []


AtmosphereClient = Atmosphere


def collections_of(kind: str) -> list[str]:
    """Return the collection of a kind of records, and the one that v0.2.3 wrote.

    >>> collections_of("entry")
    ['science.alt.dataset.entry', 'ac.foundation.dataset.record']
    """
    old = [f"{_OLD_NAMESPACE}.{_OLD[kind]}"] if kind in _OLD else []
    return [f"{LEXICON_NAMESPACE}.{kind}", *old]


def _server(url: str, prefix: str) -> XrpcClient:
    """Return a client of a server that the user names."""
    if not url.startswith(("https://", "http://")):
        raise AddressError(f"expected the URL of a server of ATProto, such as https://bsky.social, got {url!r:.200}")
    return XrpcClient(url, credentials.settings_for(prefix), trusted=True)


def client_of(account: Account) -> XrpcClient:
    """Return a client without a session: what an account publishes everybody can read."""
    return XrpcClient(account.server, credentials.settings_for(f"at://{account.did}"), trusted=account.trusted)
