"""An HTTP server with faults on request: the first part of a path names the fault (mode), the rest the file.

``server.url("stall")`` is a root whose files stall. A mode that ends in a number has the fault so many times per file
and then works: ``error2`` answers 500 twice. HEAD requests work unless the mode is about them.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

__all__ = ["FaultyServer", "faulty_server"]


class FaultyServer(ThreadingHTTPServer):
    """The server with its files and a record of its requests."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str = "127.0.0.1") -> None:
        super().__init__((host, 0), _Handler)
        self.host = host
        self.files: dict[str, bytes] = {}
        self.targets: dict[str, str] = {}
        """Target of the mode ``redirect``, by file."""
        self.marks: dict[str, dict[str, str]] = {}
        """Metadata headers of written files."""
        self.asked: Counter[str] = Counter()
        """Number of GET requests by path."""
        self.headers: list[dict[str, str]] = []
        """The headers of every request."""
        self.huge = 4 << 40
        """Size that the mode ``huge`` declares."""
        self.over = threading.Event()

    def url(self, mode: str = "ok") -> str:
        """Return a root whose files are served in this mode."""
        return f"http://{self.host}:{self.server_port}/{mode}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing when a client disconnects."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FaultyServer

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        """Write a file as S3 does: the first part of the path is the bucket, and so the mode."""
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.headers.append(dict(self.headers))
        _, mode, name = unquote(self.path).split("/", 2)
        self.server.asked[f"PUT {name}"] += 1
        match = re.fullmatch(r"([a-z-]+)(\d*)", mode)
        now = match and (not match[2] or self.server.asked[f"PUT {name}"] <= int(match[2]))
        if now and mode.startswith("conflict"):
            return self._send(409, b"<Code>ConditionalRequestConflict</Code>")
        if self.headers.get("If-None-Match") == "*" and name in self.server.files:
            return self._send(412, b"<Code>PreconditionFailed</Code>")
        self.server.files[name] = data
        self.server.marks[name] = {key: value for key, value in self.headers.items() if key.startswith("x-amz-meta-")}
        if now and mode.startswith("lost"):
            return self._hang_up()
        self._send(200, b"")

    def do_DELETE(self) -> None:
        """Delete a file as S3 does."""
        self.server.files.pop(unquote(self.path).split("/", 2)[2], None)
        self._send(204, b"")

    def _answer(self) -> None:
        self.server.headers.append(dict(self.headers))
        place = unquote(self.path.partition("?")[0])
        _, mode, name = place.split("/", 2)
        if self.command == "GET":
            self.server.asked[place] += 1
        match = re.fullmatch(r"([a-z-]+)(\d*)", mode)
        self.name = name
        if match is None or (name not in self.server.files and match[1] != "redirect"):
            return self._send(404, b"")
        self.data = self.server.files.get(name, b"")
        self.begin, self.end = self._range()
        self.body = self.data[self.begin : self.end]
        heads = {"nohead", "unknownhead", "chunked", "redirect", "denied", "head-error", "huge"}
        over = match[2] and self.server.asked[place] > int(match[2])
        how: Callable[[], None] = getattr(self, "mode_" + match[1].replace("-", "_"), self.mode_ok)
        if over or (self.command == "HEAD" and match[1] not in heads):
            how = self.mode_ok
        how()

    def _range(self) -> tuple[int, int]:
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if match is None:
            return 0, len(self.data)
        return int(match[1]), min(int(match[2] or len(self.data)) + 1, len(self.data))

    def _send(self, code: int, body: bytes, *, length: int | None = None, span: str = "", tag: str = '"v1"') -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.send_header("ETag", tag)
        self.send_header("Last-Modified", "Sat, 01 Jan 2022 00:00:00 GMT")
        for key, value in self.server.marks.get(getattr(self, "name", ""), {}).items():
            self.send_header(key, value)
        if span:
            self.send_header("Content-Range", span)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _good(self, body: bytes, *, shift: int = 0, tag: str = '"v1"', length: int | None = None) -> None:
        """Send a correct answer, except for the arguments."""
        ranged = "Range" in self.headers
        span = f"bytes {self.begin + shift}-{self.end - 1 + shift}/{len(self.data)}" if ranged else ""
        self._send(206 if ranged else 200, body, span=span, tag=tag, length=length)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def mode_ok(self) -> None:
        self._good(self.body)

    def mode_error(self) -> None:
        self._send(500, b"something broke")

    def mode_busy(self) -> None:
        self._send(503, b"slow down")

    def mode_head_error(self) -> None:
        self._send(500, b"something broke")

    def mode_denied(self) -> None:
        self._send(403, b"no")

    def mode_nohead(self) -> None:
        """Allows GET only, as presigned URLs do."""
        self._send(403, b"no") if self.command == "HEAD" else self._good(self.body)

    def mode_unknownhead(self) -> None:
        """Does not know HEAD, as some file servers of applications do not."""
        self._send(405, b"") if self.command == "HEAD" else self._good(self.body)

    def mode_huge(self) -> None:
        """Declares a file of terabytes: the real one, then other bytes."""
        if "Range" not in self.headers:
            return self._send(200, b"", length=self.server.huge)
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        span, body = f"bytes {first}-{last}/{self.server.huge}", self.data[first : last + 1]
        return self._send(206, body.ljust(last + 1 - first, b"\xff"), span=span)

    def mode_reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.close_connection = True
        self.connection.close()

    def mode_short(self) -> None:
        """Sends half of the body and closes the connection."""
        self._good(self.body[: len(self.body) // 2], length=len(self.body))
        self._hang_up()

    def mode_less(self) -> None:
        """Sends fewer bytes than the range in the header, with a matching length."""
        self._good(self.body[: len(self.body) // 2])

    def mode_clipped(self) -> None:
        """Sends a shorter range than requested, with matching headers."""
        self.end = self.begin + len(self.body) // 2
        self._good(self.data[self.begin : self.end])

    def mode_shifted(self) -> None:
        """Sends another range of the right length."""
        self._good(self.data[self.begin + 10 : self.end + 10], shift=10)

    def mode_whole(self) -> None:
        """Answers 200 with the whole file."""
        self._send(200, self.data)

    def mode_chunked(self) -> None:
        """Sends neither the size nor ranges of a file, as servers of archives made on request do."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(self.data), self.data))

    def mode_changed(self) -> None:
        """Sends another file than the HEAD request was about."""
        self._good(bytes(255 - byte for byte in self.body), tag='"v2"')

    def mode_untagged(self) -> None:
        """Sends no ETag with content."""
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Length", str(len(self.body)))
        self.send_header("Last-Modified", "Sat, 01 Jan 2022 00:00:00 GMT")
        if "Range" in self.headers:
            self.send_header("Content-Range", f"bytes {self.begin}-{self.end - 1}/{len(self.data)}")
        self.end_headers()
        self.wfile.write(self.body)

    def mode_flipped(self) -> None:
        """Flips one bit, which HTTP does not detect."""
        self._good(bytes([self.body[0] ^ 1]) + self.body[1:])

    def mode_stall(self) -> None:
        """Sends half of the body and keeps the connection open."""
        self._good(self.body[: len(self.body) // 2], length=len(self.body))
        self.wfile.flush()
        self.server.over.wait(60)
        self._hang_up()

    def mode_silent(self) -> None:
        """Sends no answer and keeps the connection open."""
        self.server.over.wait(60)
        self._hang_up()

    def mode_trickle(self) -> None:
        """Sends one byte at a time."""
        self._good(b"", length=len(self.body))
        for byte in self.body:
            self.wfile.write(bytes([byte]))
            self.wfile.flush()
            time.sleep(0.05)

    def mode_redirect(self) -> None:
        self.send_response(302)
        self.send_header("Location", self.server.targets[self.name])
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def faulty_server(host: str = "127.0.0.1") -> Iterator[FaultyServer]:
    """Run a server in a thread of this process on a free port."""
    server = FaultyServer(host)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
