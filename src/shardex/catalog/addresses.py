"""What the URLs and options of a record may be: without secrets when it is stored, and bounded when it is untrusted.

A record of a catalog that others write to is data, not the user's word. It must not make shardex read files of this
machine or its network, or lift a limit. `find` and `open_source`, with ``trusted=False``, refuse web servers with
private addresses at the time of each connection; here is what can be seen in the record itself.
"""

from __future__ import annotations

from shardex.catalog.records import Content
from shardex.errors import AddressError, ArgumentError
from shardex.formats import OPENING_OPTIONS
from shardex.sources import is_local, open_source, redact_url

_PERMISSIONS = ("trust_paths", "max_decoded_bytes", "cache_bytes")
"""Options with which a user lifts a limit."""


def check_without_secrets(content: Content) -> None:
    """Raise if a URL has a user, a password or a query, which may be a signature.

    >>> check_without_secrets(Content(fingerprint="0", urls=["https://h/a?X-Sig=1"], format="tar", samples=1))
    Traceback (most recent call last):
    shardex.errors.ArgumentError: expected a URL without user, password and query, ..., got 'https://h/a?***'; ...
    """
    for url in content.urls:
        scheme, found, rest = url.partition("://")
        query = rest.partition("?")[2]  # in a bucket, "?" stands for any character
        if found and ("@" in rest.partition("/")[0] or (query and (scheme.startswith("http") or "=" in query))):
            raise ArgumentError(
                "expected a URL without user, password and query, as others read what a catalog stores, got "
                f"{redact_url(url)!r}; open it without them, with the secrets in `sx.storage` or the environment"
            )


def check_data_options(content: Content, name: str) -> None:
    """Raise if a record, also a trusted one, has options that say how files are read on this machine."""
    if wrong := sorted(OPENING_OPTIONS & content.options.keys()):
        raise AddressError(
            f"{name}: expected options that describe the data, got {', '.join(wrong)}, which only the user sets"
        )


def check_untrusted(content: Content, name: str) -> None:
    """Raise if a record that is not trusted names a file of this machine, or lifts a limit."""
    remedy = f"if you trust where it comes from, open it with trusted=True (sx.open({name!r}, trusted=True))"
    for url in content.urls:
        if is_local(url):
            raise AddressError(
                f"{name}: expected a URL in a record of a catalog that others write to, got the local path "
                f"{url!r:.200}; {remedy}"
            )
        if not url.startswith(("http://", "https://")):  # of these `find` also knows for which hosts the user has keys
            open_source(url, trusted=False)
    for option in _PERMISSIONS:
        if option in content.options:
            raise AddressError(
                f"{name}: expected no option {option} in a record of a catalog that others write to, got "
                f"{content.options[option]!r:.50}; {remedy}"
            )
