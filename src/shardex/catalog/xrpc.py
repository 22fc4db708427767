"""`XrpcClient`: calls of one server of ATProto, and who is behind a handle (`find_account`).

A server that the user names is trusted. One that data names (the server of another account) is reached by https at a
public address only. No redirect is followed, each call has a time and a size that end it, and what a server says is
checked: blobs and records against their CIDs, a handle against the document of its account.
"""

from __future__ import annotations

import errno
import re
import threading
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from shardex.catalog.cid import check_cid, encode_dag_cbor, from_lexicon_json
from shardex.errors import (
    AccessDeniedError,
    AddressError,
    ArgumentError,
    ConflictError,
    FormatError,
    NotFoundError,
    RemoteError,
    RemoteReadError,
    RemoteWriteError,
    SchemaError,
    ShardexError,
)
from shardex.sources import RetryableError, WholeAnswer, ask_server, credentials, redact_url

MOST_BLOB_BYTES = 52_428_800
"""The limit of blobs in the lexicon of datasets; many servers allow less."""
_MOST_JSON = 32 << 20
_PAGE = 100
_LONGEST_PAUSE = 5.0
_HANDLE = re.compile(r"([a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\.)+[a-zA-Z]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?")
_DID = re.compile(r"did:(plc:[a-z2-7]{24}|web:[a-zA-Z0-9.-]{1,253})")
RESOLVER, DIRECTORY = "https://public.api.bsky.app", "https://plc.directory"
"""Servers that know handles and accounts, if the user names no others."""


class Account(NamedTuple):
    """An account and the server that has it."""

    did: str
    server: str
    trusted: bool
    """True if the user has named this server."""


class StoredRecord(NamedTuple):
    """A record of an account; its content fits its CID."""

    uri: str
    cid: str
    value: dict[str, Any]

    @property
    def key(self) -> str:
        """The key of the record in its collection."""
        return self.uri.rpartition("/")[2]


class XrpcClient:
    """Calls of one server; after `login`, as an account."""

    def __init__(self, server: str, settings: credentials.Settings, *, trusted: bool) -> None:
        self.server = server.rstrip("/")
        self._settings, self._trusted = settings, trusted
        self._tokens: dict[str, str] = {}
        self._login: tuple[str, str] | None = None
        self._renewing = threading.Lock()

    # -- calls ------------------------------------------------------------------------------------------------

    def query(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer to a query."""
        return _json(self._call("GET", method, parameters, most=_MOST_JSON), method)

    def procedure(self, method: str, body: Mapping[str, Any], *, proxy: str = "") -> dict[str, Any]:
        """Call a method that changes something; it is repeated if the connection breaks.

        With `proxy`, a DID and the name of a service, the server passes the call on to this service. Raises
        RemoteWriteError if the outcome is unknown.
        """
        content = msgspec.json.encode(body)
        found = self._call("POST", method, {}, content, "application/json", most=_MOST_JSON, proxy=proxy)
        return _json(found, method)

    def upload_blob(self, data: bytes, media_type: str = "application/octet-stream") -> dict[str, Any]:
        """Store bytes, which the server keeps as soon as a record refers to them; return the reference."""
        if len(data) > MOST_BLOB_BYTES:
            raise ArgumentError(f"expected a blob of at most {MOST_BLOB_BYTES:,} bytes, got {len(data):,}: use shards")
        method = "com.atproto.repo.uploadBlob"
        found = _json(self._call("POST", method, {}, data, media_type, most=_MOST_JSON), method)
        blob = found.get("blob")
        if not isinstance(blob, dict) or not isinstance(blob.get("ref"), dict):
            raise FormatError(f"{self.server}: expected a reference to the blob, got {found!r:.200}")
        check_cid(str(blob["ref"].get("$link")), data, f"{self.server}: uploaded blob")
        return blob

    def get_blob(self, did: str, cid: str, most: int = MOST_BLOB_BYTES) -> bytes:
        """Return the bytes of a blob, which fit its CID."""
        data = self._call("GET", "com.atproto.sync.getBlob", {"did": did, "cid": cid}, most=most)
        check_cid(cid, data, f"{self.server}: blob of {did}")
        return data

    # -- records ----------------------------------------------------------------------------------------------

    def get_record(self, did: str, collection: str, key: str) -> StoredRecord | None:
        """Return a record, None if there is none."""
        try:
            found = self.query("com.atproto.repo.getRecord", repo=did, collection=collection, rkey=key)
        except NotFoundError:
            return None
        return self._checked(found, f"at://{did}/{collection}/{key}")

    def list_records(self, did: str, collection: str) -> Iterator[StoredRecord]:
        """Yield all records of a collection, page by page."""
        cursor, seen = "", set[str]()
        while True:
            records, cursor = self.page_of_records(did, collection, cursor)
            yield from records
            if not cursor or not records:
                return
            if cursor in seen:
                raise FormatError(f"{self.server}: expected another page of {collection}, got the same one again")
            seen.add(cursor)

    def page_of_records(
        self, did: str, collection: str, cursor: str = "", limit: int = _PAGE
    ) -> tuple[list[StoredRecord], str]:
        """Return some records of a collection, and the cursor of the next page, empty for none."""
        place: dict[str, Any] = {"repo": did, "collection": collection, "limit": limit}
        page = self.query("com.atproto.repo.listRecords", **place, **({"cursor": cursor} if cursor else {}))
        records, following = page.get("records"), page.get("cursor") or ""
        if not isinstance(records, list) or not isinstance(following, str):
            raise FormatError(f"{self.server}: expected a list of records, got {page!r:.200}")
        return [self._checked(one, f"at://{did}/{collection}/") for one in records], following

    def _checked(self, found: Any, uri: str) -> StoredRecord:
        """Return a record of an answer; raise if it is another one, or not what its CID says."""
        plain = found if isinstance(found, dict) else {}
        own, cid, value = plain.get("uri"), plain.get("cid"), plain.get("value")
        if not isinstance(own, str) or not isinstance(cid, str) or not isinstance(value, dict):
            raise FormatError(f"{self.server}: expected a record with uri, cid and value, got {found!r:.200}")
        if own != uri and not (uri.endswith("/") and own.startswith(uri) and "/" not in own[len(uri) :]):
            raise FormatError(f"{self.server}: expected the record {uri}, got {own!r:.300}")
        try:
            check_cid(cid, encode_dag_cbor(from_lexicon_json(value)), f"{self.server}: {own}")
        except SchemaError as error:
            raise FormatError(f"{self.server}: {own}: {error}") from None
        return StoredRecord(own, cid, value)

    # -- sessions ---------------------------------------------------------------------------------------------

    def login(self, name: str, password: str) -> str:
        """Make a session for an account, and return its DID; it is renewed when it expires."""
        body = msgspec.json.encode({"identifier": name, "password": password})
        method = "com.atproto.server.createSession"
        self._keep(_json(self._call("POST", method, {}, body, "application/json", most=_MOST_JSON, token=""), method))
        self._login = name, password
        return self._tokens["did"]

    @property
    def session(self) -> dict[str, str]:
        """The session: did, handle, accessJwt and refreshJwt; empty without one."""
        return dict(self._tokens)

    def resume(self, session: Mapping[str, Any]) -> None:
        """Go on with the session of another client."""
        self._keep(session)

    def _keep(self, session: Mapping[str, Any]) -> None:
        tokens = {name: session.get(name) for name in ("did", "accessJwt", "refreshJwt")}
        tokens["handle"] = session.get("handle") or tokens["did"]
        if wrong := [name for name, text in tokens.items() if not isinstance(text, str) or not text.isascii()]:
            raise FormatError(f"{self.server}: expected a session with {', '.join(wrong)}, got none")
        self._tokens = tokens  # type: ignore[assignment]

    def _renew(self, expired: str) -> None:
        """Get new tokens by the refresh token, or by the password if that one has expired, too."""
        with self._renewing:
            if self._tokens.get("accessJwt") != expired:
                return  # another thread was faster
            method = "com.atproto.server.refreshSession"
            try:
                self._keep(_json(self._call("POST", method, {}, most=_MOST_JSON, token="refreshJwt"), method))
            except AccessDeniedError:
                if self._login is None:
                    raise
                self.login(*self._login)

    # -- requests ---------------------------------------------------------------------------------------------

    def _call(
        self,
        verb: str,
        method: str,
        parameters: Mapping[str, Any],
        content: bytes = b"",
        media_type: str = "",
        *,
        most: int,
        token: str = "accessJwt",
        proxy: str = "",
    ) -> bytes:
        """Return the content of the answer to a call; a session that has expired is renewed once."""
        secret = self._tokens.get(token, "")
        answer = self._send(verb, method, parameters, content, media_type, most, secret, proxy)
        if token == "accessJwt" and secret and _error_name(answer) == "ExpiredToken":
            self._renew(secret)
            answer = self._send(verb, method, parameters, content, media_type, most, self._tokens[token], proxy)
        if answer.status != 200:
            raise _error(answer, method, self.server)
        return answer.content

    def _send(
        self,
        verb: str,
        method: str,
        parameters: Mapping[str, Any],
        content: bytes,
        media_type: str,
        most: int,
        secret: str,
        proxy: str,
    ) -> WholeAnswer:
        """Send a request until there is an answer; wait as long as a busy server asks for, up to the deadline."""
        url = f"{self.server}/xrpc/{method}" + (f"?{urlencode(parameters, doseq=True)}" if parameters else "")
        headers = {"Accept": "application/json"} | ({"Content-Type": media_type} if media_type else {})
        headers |= {"Authorization": f"Bearer {secret}"} if secret else {}
        headers |= {"atproto-proxy": proxy} if proxy else {}
        end = time.monotonic() + self._settings.number("deadline")
        for number in range(int(self._settings.number("retries")) + 1):
            pause, answer = min(0.1 * 2**number, _LONGEST_PAUSE), None
            try:
                answer = ask_server(
                    verb,
                    url,
                    headers=headers,
                    content=content,
                    settings=self._settings,
                    most=most,
                    trusted=self._trusted,
                )
            except RetryableError as error:
                reason = str(error)
            else:
                if answer.status not in (429, 502, 503, 504):
                    return answer
                reason, pause = f"status {answer.status}", max(pause, _pause_of(answer))
            if time.monotonic() + pause > end:
                break
            time.sleep(pause)
        if answer is not None and answer.status == 429:
            wait = f"it allows the next request in {pause:.0f} s; wait, or raise deadline with sx.storage"
            raise RemoteError(
                errno.EBUSY, f"{method}: the server had too many requests, nothing was changed: {wait}", self.server
            )
        kind, told = (
            (RemoteReadError, "") if verb == "GET" else (RemoteWriteError, "; whether it was done is not known")
        )
        raise kind(errno.EIO, f"{method}: expected an answer, the last was: {reason}{told}", self.server)


def _json(content: bytes, where: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(content or b"{}", type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise FormatError(f"{where}: expected JSON, got: {error}") from None


def _error_name(answer: WholeAnswer) -> str:
    return str(_told(answer).get("error", "")) if answer.status >= 400 else ""


def _told(answer: WholeAnswer) -> dict[str, Any]:
    try:
        return _json(answer.content, "")
    except FormatError:
        return {}


def _pause_of(answer: WholeAnswer) -> float:
    """Return the seconds that a busy server asks to wait."""
    after = answer.headers.get("Retry-After") or ""
    reset = answer.headers.get("RateLimit-Reset") or ""
    if after.isdecimal():
        return float(after[:9])
    if reset.isdecimal():
        return max(float(reset[:12]) - time.time(), 0)
    try:
        return max(parsedate_to_datetime(after).timestamp() - time.time(), 0)
    except (ValueError, OverflowError):
        return 0


_MISSING = {"RecordNotFound", "BlobNotFound", "RepoNotFound", "HandleNotFound"}
_DENIED = {"AuthMissing", "AuthenticationRequired", "AuthFactorTokenRequired", "InvalidToken", "ExpiredToken"}
_DENIED |= {"AccountTakedown", "RepoTakendown", "RepoDeactivated", "AccountDeactivated"}


def _error(answer: WholeAnswer, method: str, server: str) -> ShardexError:
    """Return the error for an answer that says no."""
    name = _error_name(answer)
    text = f"{method}: {name or answer.status}: {_told(answer).get('message', '')!s:.300}"
    if 300 <= answer.status < 400:
        return RemoteError(errno.EPROTO, f"{method}: expected an answer, got a redirect, which is not followed", server)
    if (
        name in _MISSING
        or answer.status == 404
        or "Could not find" in text
        or "Unable to resolve handle" in text
        or "not found" in text.lower()
    ):
        return NotFoundError(errno.ENOENT, text, server)
    if name in _DENIED or answer.status in (401, 403):
        remedy = "set the password of the account (an app password): sx.storage('at://handle', password=...)"
        return AccessDeniedError(errno.EACCES, f"{text}; {remedy}", server)
    if name == "InvalidSwap":
        return ConflictError(f"{server}: {text}")
    if answer.status == 413:
        return RemoteError(errno.EFBIG, f"{text}: larger than this server allows", server)
    kind = RemoteReadError if answer.status >= 500 else RemoteError
    return kind(errno.EPROTO, text, server)


# -- accounts -------------------------------------------------------------------------------------------------


def find_account(name: str) -> Account:
    """Return the account of a handle or a DID, by the servers in `storage` or the public ones.

    The document of the account must name the handle: a handle may claim any account.
    """
    settings = credentials.settings_for(f"at://{name}")
    service, directory = (str(settings.values.get(key, "")).rstrip("/") for key in ("service", "directory"))
    did = name if name.startswith("did:") else _did_of(name, service, settings)
    if not _DID.fullmatch(did):
        raise AddressError(f"at://{name}: expected a DID (did:plc:... or did:web:...), got {did!r:.100}")
    document = _document(did, directory, settings)
    if document.get("id") != did:
        raise FormatError(f"at://{name}: expected the document of {did}, got that of {document.get('id')!r:.100}")
    handles = document.get("alsoKnownAs")
    if name != did and (not isinstance(handles, list) or f"at://{name}" not in handles):
        raise AccessDeniedError(
            errno.EACCES, f"expected an account that has the handle {name}, got {did}, which has {handles!r:.200}", did
        )
    server = next(
        (
            one.get("serviceEndpoint")
            for one in document.get("service") or ()
            if isinstance(one, dict) and str(one.get("id", "")).endswith("#atproto_pds")
        ),
        None,
    )
    if not isinstance(server, str):
        raise FormatError(f"at://{name}: expected the document of {did} to name a server of the account, got none")
    server = server.rstrip("/")
    return Account(did, server, trusted=server == service)


def _did_of(handle: str, service: str, settings: credentials.Settings) -> str:
    if not _HANDLE.fullmatch(handle) or len(handle) > 253:
        raise AddressError(f"expected a handle such as at://alice.example.com, got {f'at://{handle}'!r:.300}")
    client = XrpcClient(service or RESOLVER, settings, trusted=bool(service))
    try:
        return str(client.query("com.atproto.identity.resolveHandle", handle=handle).get("did"))
    except NotFoundError as error:
        text = f"expected a handle of an account, got: {error.strerror}"
        raise NotFoundError(errno.ENOENT, text, f"at://{handle}") from None


def _document(did: str, directory: str, settings: credentials.Settings) -> dict[str, Any]:
    by_plc = did.startswith("did:plc:")
    server = directory or DIRECTORY if by_plc else f"https://{did.removeprefix('did:web:')}"
    url = f"{server}/{did}" if by_plc else f"{server}/.well-known/did.json"
    try:
        answer = ask_server("GET", url, settings=settings, most=_MOST_JSON, trusted=by_plc and bool(directory))
    except RetryableError as error:
        raise RemoteReadError(errno.EIO, f"cannot read the document of {did}: {error}", redact_url(url)) from None
    if answer.status != 200:
        raise NotFoundError(errno.ENOENT, f"expected the document of {did}, got status {answer.status}", url)
    return _json(answer.content, url)
