"""Requests to web URLs that come from data and not from the user: they never reach this machine or its network.

A manifest or a record may name any URL, and could make shardex read what only this machine can reach. So every
connection goes to an address that was resolved and found public immediately before; another spelling of the
address, a changed DNS entry or a redirect does not bypass the check. Redirects are followed here: they must keep the
scheme, are checked like the first URL, and get no secrets if they lead to another host. Proxies of the environment
are not used.

`GuardedClient` reads ranges of files. `ask_server` is for calls of services: one request of any kind, the whole answer.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import quote, urljoin, urlsplit

from shardex.errors import AddressError, PathError, RemoteError, SourceError
from shardex.sources.byte_ranges import ByteRange
from shardex.sources.credentials import MIN_SPEED, Settings, redact_url
from shardex.sources.object_client import Bucket, auth_headers, request_slots, run_in_thread
from shardex.sources.protocols import Stat
from shardex.sources.retry import WHOLE_FILE, RetryableError, check_unchanged, error_for_status, stat_from_headers

if TYPE_CHECKING:
    from email.message import Message
    from http.client import HTTPConnection, HTTPResponse

T = TypeVar("T")

_SCHEMES = ("http", "https", "s3", "gs", "az")
_MAX_REDIRECTS = 5
_REDIRECTS = {301, 302, 303, 307, 308}
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_PUBLIC_V6 = ipaddress.ip_network("2000::/3")
"""The only IPv6 addresses that are assigned to hosts of the public internet."""
_SPECIAL = [
    ipaddress.ip_network(one)
    for one in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        *("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20"),
    )
]
"""The special-purpose address registries of IANA (RFC 6890), and multicast: `ipaddress` lacks the newer entries."""
_ISATAP = (0x00005EFE, 0x02005EFE)
"""Third quarter of an IPv6 address whose last quarter is an IPv4 address (RFC 5214)."""


def check_untrusted(url: str) -> str:
    """Return the URL if data may refer to it: a bucket, or a web server with a public address.

    >>> check_untrusted("s3://bucket/data/a.tar")
    's3://bucket/data/a.tar'
    >>> check_untrusted("http://0x7f000001/")
    Traceback (most recent call last):
    shardex.errors.AddressError: 'http://0x7f000001/': expected an address of the public internet, got 127.0.0.1
    """
    scheme, host, port = _split(url)
    if scheme in ("http", "https"):
        _addresses(host, port, url)
    return url


def _split(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port of a well-formed URL; a bucket has neither host nor port."""

    def refuse(expected: str) -> AddressError:
        return AddressError(f"{redact_url(url)!r}: expected {expected} in a URL that data names")

    if re.search(r"[\x00-\x20\x7f\\]", url):
        raise refuse("no spaces, control characters or backslashes")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise refuse("a host and a port") from None
    if parts.scheme not in _SCHEMES:
        raise refuse(" or ".join(f"{scheme}://" for scheme in _SCHEMES))
    if "@" in parts.netloc:
        raise refuse("neither user nor password")
    if parts.scheme in ("http", "https"):
        if not host:
            raise refuse("a host")
        return parts.scheme, host, port or (80 if parts.scheme == "http" else 443)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", parts.netloc) or parts.query or parts.fragment:
        raise refuse("the plain name of a bucket, then a path")
    return parts.scheme, "", 0


def is_public(address: str) -> bool:
    """Return True if an address and any IPv4 address embedded in it belong to the public internet.

    >>> [is_public(one) for one in ("8.8.8.8", "10.0.0.1", "169.254.169.254", "::ffff:127.0.0.1", "2002:7f00:1::")]
    [True, False, False, False, False]
    """
    one = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(one, ipaddress.IPv6Address):
        inner = ipaddress.IPv4Address(int(one) & 0xFFFFFFFF)
        if one.ipv4_mapped or one in _NAT64:
            return is_public(str(inner))
        if one not in _PUBLIC_V6 or ((int(one) >> 32) & 0xFFFFFFFF in _ISATAP and not is_public(str(inner))):
            return False
    return not any(one in network for network in _SPECIAL)


def _read_headers(connection: HTTPConnection, seconds: float) -> HTTPResponse:
    """Read the headers of an answer; disconnect if they do not arrive in time."""

    def disconnect() -> None:
        with suppress(OSError):
            if connection.sock is not None:
                connection.sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, disconnect)
    timer.daemon = True
    timer.start()
    try:
        return connection.getresponse()
    finally:
        timer.cancel()


def _addresses(host: str, port: int, url: str, *, public: bool = True) -> list[tuple[int, tuple[object, ...]]]:
    """Resolve a host to families and addresses to connect to; raise an error if one must be public and is not."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        found = []
    if not found:
        raise AddressError(f"{redact_url(url)!r}: expected a host that has an address, got {host!r}")
    for *_, address in found:
        if public and not is_public(str(address[0])):
            raise AddressError(f"{redact_url(url)!r}: expected an address of the public internet, got {address[0]}")
    return [(family, address) for family, *_, address in found]


def _connect(scheme: str, host: str, port: int, timeout: float, *, trusted: bool = False) -> HTTPConnection:
    """Return a connection to one of the addresses, which are checked unless trusted; it never reconnects."""
    from http.client import HTTPConnection, HTTPSConnection
    from ssl import create_default_context

    connection = (HTTPSConnection if scheme == "https" else HTTPConnection)(host, port, timeout=timeout)
    connection.auto_open = 0
    failure: OSError | None = None
    for family, address in _addresses(host, port, f"{scheme}://{host}:{port}/", public=not trusted):
        link = socket.socket(family, socket.SOCK_STREAM)
        link.settimeout(timeout)
        try:
            link.connect(address)
            connection.sock = (
                create_default_context().wrap_socket(link, server_hostname=host) if scheme == "https" else link
            )
            return connection
        except OSError as error:
            link.close()
            failure = error
    raise failure or OSError(errno.EHOSTUNREACH, "no address")


class WholeAnswer(NamedTuple):
    """What a server answered to one request."""

    status: int
    headers: Message
    content: bytes


def ask_server(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    content: bytes = b"",
    settings: Settings,
    most: int,
    trusted: bool = False,
) -> WholeAnswer:
    """Send one request and return the whole answer, of at most `most` bytes; a redirect is an answer like others.

    An untrusted URL, which data names, leads to a public address by https only. A failure that another attempt may
    avoid is a `RetryableError`.
    """
    from http.client import HTTPException

    scheme, host, port = _split(url)
    if scheme != "https" and not (trusted and scheme == "http"):
        raise AddressError(f"{redact_url(url)!r}: expected https:// in a URL that data names, got {scheme}://")
    parts, timeout = urlsplit(url), settings.number("timeout")
    limit = time.monotonic() + settings.number("deadline") + len(content) / MIN_SPEED
    try:
        with closing(_connect(scheme, host, port, timeout, trusted=trusted)) as connection:
            own = {"User-Agent": "shardex", "Accept-Encoding": "identity", **(headers or {})}
            connection.request(method, f"{parts.path or '/'}{parts.query and '?'}{parts.query}", content or None, own)
            answer = _read_headers(connection, timeout)
            body = bytearray()
            while piece := answer.read1(min(most + 1 - len(body), 1 << 18)):
                body += piece
                if len(body) > most:
                    raise RemoteError(errno.EFBIG, f"expected an answer of at most {most:,} bytes, got more", url)
                if time.monotonic() > limit:
                    raise TimeoutError
            declared = answer.getheader("Content-Length", "")
            if declared.isdigit() and int(declared) != len(body) and answer.status not in (204, 304):
                raise RetryableError("the answer broke off")
            return WholeAnswer(answer.status, answer.headers, bytes(body))
    except (SourceError, PathError, RetryableError):
        raise
    except (OSError, HTTPException) as error:
        reason = "no complete answer in time" if isinstance(error, TimeoutError) else _reason(error)
        raise RetryableError(reason) from None


def _reason(error: Exception) -> str:
    """Return the cause of a failed connection in a few words."""
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__


class GuardedClient:
    """Requests to one untrusted web server."""

    def __init__(self, bucket: Bucket, settings: Settings) -> None:
        self.settings = settings
        self.slots = request_slots(settings)
        self._bucket, self._query = bucket, f"?{bucket.query}" if bucket.query else ""
        self._threads = ThreadPoolExecutor(int(settings.number("concurrency")), thread_name_prefix="shardex-guarded")
        self._idle: defaultdict[tuple[str, str], list[HTTPConnection]] = defaultdict(list)
        self._final_urls: dict[str, str] = {}
        """The URL at the end of the redirects of a key."""

    async def head(self, key: str, *, by_get: bool = False) -> Stat:
        """Send a HEAD request, or a GET request of which only the headers are read."""
        return await self._in_thread(lambda: self._ask("GET" if by_get else "HEAD", key, None, self._whole))

    async def get(self, key: str, wanted: ByteRange, pinned: Stat) -> memoryview:
        """Request a range; check the headers before the body is read."""
        limit = time.monotonic() + self.settings.number("deadline") + wanted.length / MIN_SPEED

        def read(answer: HTTPResponse) -> memoryview:
            span = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", answer.getheader("Content-Range", ""))
            if answer.status != 206 or span is None or answer.getheader("Content-Encoding"):
                is_whole = answer.status == 200
                raise RetryableError(
                    WHOLE_FILE if is_whole else f"status {answer.status} instead of the requested range"
                )
            if (int(span[1]), int(span[2]) + 1) != (wanted.begin, wanted.end):
                raise RetryableError(f"bytes {span[1]} to {int(span[2]) + 1} instead of {wanted.begin} to {wanted.end}")
            check_unchanged(_stat(answer, int(span[3])), pinned, key)
            return _read_body(answer, wanted.length, limit)

        return await self._in_thread(lambda: self._ask("GET", key, wanted, read))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await run_in_thread(self._threads, work)

    @staticmethod
    def _whole(answer: HTTPResponse) -> Stat:
        length = answer.getheader("Content-Length")
        if length is None or not length.isdigit():
            raise RemoteError(errno.EPROTO, "expected a Content-Length, got none", "")
        return _stat(answer, int(length))

    def _ask(self, method: str, key: str, wanted: ByteRange | None, use: Callable[[HTTPResponse], T]) -> T:
        """Send one request, follow its redirects and return `use(answer)`."""
        from http.client import HTTPException

        first = f"{self._bucket.scheme}://{self._bucket.name}/{quote(key)}{self._query}"
        url = self._final_urls.pop(key, first)
        try:
            for _ in range(_MAX_REDIRECTS):
                answer, connection = self._send(method, url, wanted)
                if answer.status not in _REDIRECTS:
                    return self._finish(answer, connection, key, url, use)
                connection.close()
                url = self._redirect_target(url, answer.getheader("Location", ""))
        except (SourceError, PathError, RetryableError):
            raise
        except (OSError, HTTPException) as error:
            text = "no complete answer in time" if isinstance(error, TimeoutError) else type(error).__name__
        else:
            text = ""
        if text:
            raise RetryableError(text)
        raise RemoteError(errno.ELOOP, f"expected at most {_MAX_REDIRECTS} redirects, got more", key)

    def _finish(
        self,
        answer: HTTPResponse,
        connection: HTTPConnection,
        key: str,
        url: str,
        use: Callable[[HTTPResponse], T],
    ) -> T:
        try:
            if answer.status not in (200, 206):
                raise error_for_status(answer.status, f"{answer.status} {answer.reason}", key)
            result = use(answer)
        except BaseException:
            connection.close()
            raise
        self._final_urls[key] = url
        if answer.isclosed() and not answer.will_close:
            parts = urlsplit(url)
            self._idle[parts.scheme, parts.netloc].append(connection)
        else:
            connection.close()
        return result

    def _send(self, method: str, url: str, wanted: ByteRange | None) -> tuple[HTTPResponse, HTTPConnection]:
        parts = urlsplit(url)
        scheme, host, port = _split(url)
        headers = {"User-Agent": "shardex", "Accept-Encoding": "identity"}
        if (scheme, parts.netloc) == (self._bucket.scheme, self._bucket.name):
            headers |= auth_headers(self.settings)
        if wanted:
            headers["Range"] = f"bytes={wanted.begin}-{wanted.end - 1}"
        try:
            connection = self._idle[scheme, parts.netloc].pop()
        except IndexError:
            connection = _connect(scheme, host, port, self.settings.number("timeout"))
        try:
            connection.request(method, f"{parts.path or '/'}{parts.query and '?'}{parts.query}", headers=headers)
            return _read_headers(connection, self.settings.number("timeout")), connection
        except BaseException:
            connection.close()
            raise

    def _redirect_target(self, url: str, location: str) -> str:
        """Return the target of a redirect; raise an error if it must not be followed."""
        try:
            to = urljoin(url, location)
        except ValueError:
            raise AddressError(f"{redact_url(url)!r}: expected a redirect to a URL, got {location!r:.200}") from None
        scheme, _, _ = _split(to)
        if scheme != self._bucket.scheme:
            expected = f"expected a redirect to {self._bucket.scheme}://"
            raise AddressError(f"{redact_url(url)!r}: {expected}, got {redact_url(to)!r}")
        return to.partition("#")[0]


def _stat(answer: HTTPResponse, size: int) -> Stat:
    try:
        modified = parsedate_to_datetime(answer.getheader("Last-Modified", ""))
    except ValueError:
        modified = None
    return stat_from_headers(size, answer.getheader("ETag"), modified)


def _read_body(answer: HTTPResponse, length: int, limit: float) -> memoryview:
    """Read `length` bytes of the body, or fewer if it ends; raise an error after the time limit."""
    block = bytearray(length)
    view, at = memoryview(block), 0
    while at < length:
        if time.monotonic() > limit:
            raise RetryableError("no complete answer in time")
        got = answer.readinto(view[at : at + (1 << 18)])
        if not got:
            break
        at += got
    return view[:at].toreadonly()
