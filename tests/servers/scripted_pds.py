"""An ATProto server in this process that keeps records and obeys a script: it can be busy, lie, or lose an answer.

It also stands for the directory of accounts. Tests that need no faults use the real server (`pds`).
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from shardex.catalog import cid_of, encode_dag_cbor
from shardex.catalog.cid import RAW, from_lexicon_json

__all__ = ["DID", "HANDLE", "Answer", "Refused", "ScriptedPds", "scripted_pds"]

DID, HANDLE, PASSWORD = "did:plc:" + "a2" * 12, "alice.example.com", "correct-horse"
Answer = tuple[int, Any, dict[str, str]]


class Refused(Exception):
    """An error that the server answers: status, name and message."""


class ScriptedPds(ThreadingHTTPServer):
    """The server: `script` has answers for the next calls of a method, None for the usual one."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.script: dict[str, list[Answer | str | None]] = {}
        """What comes next: an answer, ``"lost"`` (done, but not answered), ``"reset"`` (neither), or as usual."""
        self.records: dict[tuple[str, str], Any] = {}
        self.blobs: dict[str, bytes] = {}
        self.document: dict[str, Any] = {
            "id": DID,
            "alsoKnownAs": [f"at://{HANDLE}"],
            "service": [{"id": "#atproto_pds", "serviceEndpoint": self.url}],
        }
        self.asked: Counter[str] = Counter()
        self.paths: list[str] = []
        self.proxies: list[str] = []
        """Services to which calls were to be passed on."""
        self.page = 3
        self.tokens: set[str] = set()
        """Those of sessions that have not expired."""
        self.commits = 0
        self.lock = threading.Lock()

    def answer(self, method: str, parameters: dict[str, str], body: bytes, token: str) -> Any:
        """Return the usual answer to a call."""
        name = method.rpartition(".")[2]
        with self.lock:
            work: Callable[..., Any] = getattr(self, f"on_{name}", self.unknown)
            return work(parameters, body, token)

    def unknown(self, *_: object) -> Any:
        raise Refused(501, "MethodNotImplemented", "")

    def on_resolveHandle(self, parameters: dict[str, str], *_: object) -> Any:
        if parameters["handle"] != HANDLE:
            raise Refused(400, "HandleNotFound", "Unable to resolve handle")
        return {"did": DID}

    def on_createSession(self, _: object, body: bytes, __: object) -> Any:
        if json.loads(body)["password"] != PASSWORD:
            raise Refused(401, "AuthenticationRequired", "Invalid identifier or password")
        return self.session()

    def on_refreshSession(self, _: object, __: object, token: str) -> Any:
        if token not in self.tokens or not token.startswith("refresh"):
            raise Refused(400, "ExpiredToken", "Token has expired")
        return self.session()

    def session(self) -> Any:
        access, refresh = (f"{kind}{len(self.tokens)}-{secrets.token_hex(4)}" for kind in ("access", "refresh"))
        self.tokens |= {access, refresh}
        return {"did": DID, "handle": HANDLE, "accessJwt": access, "refreshJwt": refresh}

    def check(self, token: str) -> None:
        if not token:
            raise Refused(401, "AuthMissing", "Authentication Required")
        if token not in self.tokens or not token.startswith("access"):
            raise Refused(400, "ExpiredToken", "Token has expired")

    def stored(self, place: tuple[str, str]) -> Any:
        value = self.records[place]
        cid = cid_of(encode_dag_cbor(from_lexicon_json(value)))
        return {"uri": f"at://{DID}/{place[0]}/{place[1]}", "cid": cid, "value": value}

    def on_getRecord(self, parameters: dict[str, str], *_: object) -> Any:
        place = parameters["collection"], parameters["rkey"]
        if place not in self.records:
            raise Refused(400, "RecordNotFound", "Could not locate record")
        return self.stored(place)

    def on_listRecords(self, parameters: dict[str, str], *_: object) -> Any:
        after = parameters.get("cursor", "")
        places = sorted(one for one in self.records if one[0] == parameters["collection"] and one[1] > after)
        page = places[: self.page]
        cursor = {"cursor": page[-1][1]} if len(places) > len(page) else {}
        return {"records": [self.stored(one) for one in page], **cursor}

    def on_getLatestCommit(self, *_: object) -> Any:
        return {"cid": f"commit{self.commits}", "rev": str(self.commits)}

    def on_applyWrites(self, _: object, body: bytes, token: str) -> Any:
        self.check(token)
        asked = json.loads(body)
        if asked.get("swapCommit", f"commit{self.commits}") != f"commit{self.commits}":
            raise Refused(400, "InvalidSwap", f"Commit was at commit{self.commits}")
        for one in asked["writes"]:
            if (one["$type"].endswith("create")) == ((one["collection"], one["rkey"]) in self.records):
                raise Refused(500, "InternalServerError", "Internal Server Error")
        for one in asked["writes"]:
            place = one["collection"], one["rkey"]
            if one["$type"].endswith("delete"):
                del self.records[place]
            else:
                self.records[place] = one["value"]
        self.commits += 1
        return {}

    def on_describeRepo(self, parameters: dict[str, str], *_: object) -> Any:
        if parameters["repo"] not in (DID, HANDLE):
            raise Refused(400, "InvalidRequest", f"Could not find user: {parameters['repo']}")
        return {"did": DID, "handle": HANDLE}

    def changed(self, body: bytes, token: str) -> tuple[dict[str, Any], tuple[str, str]]:
        """Return what a change asks for, and the place of its record; refuse it after another commit."""
        self.check(token)
        asked = json.loads(body)
        if asked.get("swapCommit", f"commit{self.commits}") != f"commit{self.commits}":
            raise Refused(400, "InvalidSwap", f"Commit was at commit{self.commits}")
        self.commits += 1
        return asked, (asked["collection"], asked.get("rkey") or f"3k{self.commits:011}")

    def on_putRecord(self, _: object, body: bytes, token: str) -> Any:
        asked, place = self.changed(body, token)
        self.records[place] = asked["record"]
        return {name: one for name, one in self.stored(place).items() if name != "value"}

    on_createRecord = on_putRecord

    def on_deleteRecord(self, _: object, body: bytes, token: str) -> Any:
        self.records.pop(self.changed(body, token)[1], None)
        return {}

    def on_uploadBlob(self, _: object, body: bytes, token: str) -> Any:
        self.check(token)
        cid = cid_of(body, RAW)
        self.blobs[cid] = body
        return {"blob": {"$type": "blob", "ref": {"$link": cid}, "mimeType": "*/*", "size": len(body)}}

    def on_getBlob(self, parameters: dict[str, str], *_: object) -> Any:
        if parameters["cid"] not in self.blobs:
            raise Refused(400, "BlobNotFound", "Blob not found")
        return self.blobs[parameters["cid"]]


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedPds

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _answer(self, body: bytes) -> None:
        parts = urlsplit(self.path)
        method = parts.path.removeprefix("/xrpc/")
        if parts.path == f"/{DID}":
            return self._send(200, self.server.document, {})
        self.server.asked[method] += 1
        self.server.paths.append(self.path)
        self.server.proxies += filter(None, [self.headers.get("atproto-proxy")])
        planned = self.server.script.get(method, [])
        step = planned.pop(0) if planned else None
        if isinstance(step, tuple):
            return self._send(*step)
        if step == "reset":
            return self._hang_up()
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        try:
            found = self.server.answer(method, dict(parse_qsl(parts.query)), body, token)
        except Refused as refused:
            status, name, message = refused.args
            return self._send(status, {"error": name, "message": message}, {})
        if step == "lost":
            return self._hang_up()
        return self._send(200, found, {})

    def _hang_up(self) -> None:
        self.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, status: int, content: Any, headers: dict[str, str]) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def scripted_pds() -> Iterator[ScriptedPds]:
    """Run a server in a thread of this process on a free port."""
    server = ScriptedPds()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
