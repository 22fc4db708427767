"""The keyring: what is needed to reach a storage, by URL prefix, kept out of datasets and of everything that is shown.

A dataset carries URLs only. `storage` notes settings and secrets in this process; where nothing is noted, the
environment speaks (``AWS_*``, ``GOOGLE_*``, ``AZURE_*``). `export` and `adopt` hand the keyring to a worker process,
over a private pipe. `shown` and `scrub` are for every text that a person may see.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn
from urllib.parse import unquote

from shardex.errors import SchemaError

__all__ = [
    "SLOWEST",
    "Settings",
    "adopt",
    "changes",
    "export",
    "is_vouched",
    "noted",
    "scrub",
    "settings_for",
    "shown",
    "storage",
    "without_secrets",
]

Setting = str | int | float | bool | dict[str, str]

_S3 = {
    "endpoint": "endpoint",
    "region": "region",
    "access_key_id": "access_key_id",
    "secret_access_key": "secret_access_key",
    "token": "session_token",
    "anonymous": "skip_signature",
    "virtual_hosted": "virtual_hosted_style_request",
    "request_payer": "request_payer",
    "role_arn": "role_arn",
}
_GS = {
    "endpoint": "base_url",
    "service_account": "service_account",
    "service_account_key": "service_account_key",
    "token": "bearer_token",
    "anonymous": "skip_signature",
}
_AZ = {
    "endpoint": "endpoint",
    "account_name": "account_name",
    "account_key": "account_key",
    "sas_token": "sas_key",
    "token": "token",
    "tenant_id": "tenant_id",
    "client_id": "client_id",
    "client_secret": "client_secret",
    "anonymous": "skip_signature",
}
_HTTP = {"username": "", "password": "", "token": "", "headers": ""}
STORES: dict[str, dict[str, str]] = {"s3": _S3, "gs": _GS, "az": _AZ, "http": _HTTP, "https": _HTTP}
"""By scheme: the settings that belong to the store, and what obstore calls them."""

_DEFAULTS: dict[str, Setting] = {
    "timeout": 15.0,
    "deadline": 120.0,
    "retries": 6,
    "concurrency": 32,
    "allow_http": False,
    "allow_invalid_certificates": False,
}
_SECRET = {
    "access_key_id",
    "secret_access_key",
    "token",
    "service_account_key",
    "account_key",
    "sas_token",
    "client_secret",
    "username",
    "password",
    "headers",
}
_HIDDEN = "***"
SLOWEST = 128 << 10
"""Bytes per second that a connection must reach: a timeout is longer by the time that the bytes take at this speed."""


@dataclass(frozen=True, eq=False)
class Settings:
    """What is noted for one prefix; shows the names of its settings, never their values, and is not pickled.

    >>> Settings({"region": "eu-west-1", "secret_access_key": "shh"})
    Settings(region, secret_access_key)
    """

    values: Mapping[str, Setting] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Settings({', '.join(sorted(self.values))})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("settings may hold secrets and are not pickled: hand them over by keyring.export() and adopt()")

    def number(self, name: str) -> float:
        """A number: what was set, or the default."""
        value = self.values.get(name, _DEFAULTS[name])
        assert isinstance(value, int | float)
        return value

    def store(self, scheme: str) -> dict[str, Setting]:
        """What the store is made with, in obstore's words."""
        return {name: self.values[ours] for ours, name in STORES[scheme].items() if name and ours in self.values}


@dataclass
class _Ring:
    """What this process has noted, by prefix, and how often that changed."""

    noted: dict[str, Settings] = field(default_factory=dict)
    changes: int = 0


_ring = _Ring()
_NONE = Settings()


def storage(prefix: str, **settings: Setting) -> None:
    """Note how the storage at an URL prefix is reached, in this process; the longest prefix that fits is used.

    For all: `timeout` (seconds without progress, 15), `deadline` (seconds for one request with its retries, 120),
    `retries` (6), `concurrency` (requests at once, 32), `allow_http` (no encryption), `allow_invalid_certificates`.
    For ``s3://``: `endpoint`, `region`, `access_key_id`, `secret_access_key`, `token`, `anonymous`, `virtual_hosted`,
    `request_payer`, `role_arn`. For ``gs://``: `service_account` (a file), `service_account_key` (its content),
    `token`, `anonymous`, `endpoint`. For ``az://``: `account_name`, `account_key`, `sas_token`, `token`, `tenant_id`,
    `client_id`, `client_secret`, `anonymous`, `endpoint`. For ``http(s)://``: `username` and `password`, `token`,
    `headers`. Without settings, what was noted is forgotten.

    >>> storage("s3://my-bucket", endpoint="https://minio.example", region="us-east-1", anonymous=True)
    >>> settings_for("s3://my-bucket/data/x.tar")
    Settings(anonymous, endpoint, region)
    >>> storage("s3://my-bucket", colour="red")
    Traceback (most recent call last):
    shardex.errors.SchemaError: storage('s3://my-bucket'): expected settings among access_key_id, ..., got 'colour'
    >>> storage("s3://my-bucket")
    """
    key = _prefix(prefix)
    known = {**_DEFAULTS, **STORES[key.partition("://")[0]]}
    if unknown := [name for name in settings if name not in known]:
        among, got = ", ".join(sorted(known)), ", ".join(map(repr, unknown))
        raise SchemaError(f"storage({shown(prefix)!r}): expected settings among {among}, got {got}")
    for name, value in settings.items():
        _check(prefix, name, value)
    _note({key: Settings(dict(settings)) if settings else None})


def _check(prefix: str, name: str, value: Setting) -> None:
    if name in ("allow_http", "allow_invalid_certificates", "anonymous", "virtual_hosted", "request_payer"):
        good, expected = isinstance(value, bool), "True or False"
    elif name in _DEFAULTS:
        whole = name in ("retries", "concurrency")
        least = {"retries": 0, "concurrency": 1}.get(name, 0.001)
        good = isinstance(value, int if whole else int | float) and not isinstance(value, bool) and value >= least
        expected = f"a{' whole' if whole else ''} number of at least {least:g}"
    elif name == "headers":
        good = isinstance(value, dict) and all(isinstance(text, str) for pair in value.items() for text in pair)
        expected = "a dict of strings"
    else:
        good, expected = isinstance(value, str), "a string"
    if not good:
        got = f"a {type(value).__name__}" if name in _SECRET else repr(value)
        raise SchemaError(f"storage({shown(prefix)!r}): expected {name} to be {expected}, got {got}")


def _note(entries: Mapping[str, Settings | None]) -> None:
    kept = {prefix: settings for prefix, settings in _ring.noted.items() if prefix not in entries}
    _ring.noted = kept | {prefix: settings for prefix, settings in entries.items() if settings is not None}
    _ring.changes += 1


def changes() -> int:
    """How often the keyring was changed: who keeps settings looks here whether to ask again."""
    return _ring.changes


def noted(settings: Settings) -> bool:
    """Whether settings are still in use."""
    return settings is _NONE or any(settings is one for one in _ring.noted.values())


def settings_for(url: str) -> Settings:
    """What is noted for the longest prefix of an URL, or nothing."""
    url = _prefix(url)
    fitting = [one for one in _ring.noted if url == one or url.startswith(one if one.endswith("://") else f"{one}/")]
    return _ring.noted[max(fitting, key=len)] if fitting else _NONE


def is_vouched(url: str) -> bool:
    """Whether the user noted for a web server what is sent to it: its name came from the user, then.

    >>> storage("https://lab.example", token="t"); storage("http://", timeout=5)
    >>> is_vouched("https://lab.example/a.tar"), is_vouched("http://other.example")
    (True, False)
    >>> storage("https://lab.example"); storage("http://")
    """
    return not _HTTP.keys().isdisjoint(settings_for(url).values)


def _prefix(url: str) -> str:
    """One spelling for one place: small letters in scheme and host, no slash at the end, no query."""
    scheme, found, rest = url.partition("://")
    scheme = scheme.lower()
    if not found or scheme not in STORES:
        known = ", ".join(f"{name}://" for name in STORES)
        raise SchemaError(f"storage: expected an URL prefix that begins with {known}, got {shown(url)!r}")
    host, slash, path = rest.partition("?")[0].partition("/")
    host = host.rpartition("@")[2]
    return (
        f"{scheme}://{host.lower() if 'http' in scheme else host}{slash}{path}".rstrip("/") if rest else f"{scheme}://"
    )


def export() -> bytes:
    """The keyring, secrets and all: for a private pipe to a process of ours, never for a file."""
    return json.dumps({prefix: dict(settings.values) for prefix, settings in _ring.noted.items()}).encode()


def adopt(exported: bytes) -> None:
    """Take over what another process exported.

    >>> storage("s3://there", region="eu-west-1"); ring = export(); storage("s3://there")
    >>> adopt(ring); settings_for("s3://there"); storage("s3://there")
    Settings(region)
    """
    _note({prefix: Settings(values) for prefix, values in json.loads(exported).items()})


def without_secrets(url: str) -> str:
    """The URL without ``user:password@``, which goes to the keyring instead.

    >>> without_secrets("https://me:pw@host.example/data"), settings_for("https://host.example/data")
    ('https://host.example/data', Settings(password, username))
    >>> storage("https://host.example")
    """
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    userinfo, found, host = host.rpartition("@")
    if not found:
        return url
    name, _, password = userinfo.partition(":")
    values = {**settings_for(url).values, "username": unquote(name), "password": unquote(password)}
    _note({_prefix(f"{scheme}://{host}"): Settings(values)})
    return f"{scheme}://{host}{slash}{path}"


def shown(url: str) -> str:
    """An URL as it may be shown: no user, no password, no query, which may hold a signature.

    >>> shown("https://me:pw@host/a.tar?X-Amz-Signature=0f3a"), shown("s3://bucket/a")
    ('https://***@host/a.tar?***', 's3://bucket/a')
    """
    url, query, _ = url.partition("?")
    scheme, found, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    if found and "@" in host:
        url = f"{scheme}://{_HIDDEN}@{host.rpartition('@')[2]}{slash}{path}"
    return url + (query and f"?{_HIDDEN}")


def scrub(text: str) -> str:
    """A text of somebody else without the secrets that we know or that look like some.

    >>> scrub("cannot GET https://me:pw@host/a?sig=1 now")
    'cannot GET https://***@host/a?*** now'
    """
    for secret in _secrets():
        text = text.replace(secret, _HIDDEN)
    return re.sub(r"\b[a-z0-9+.-]+://[^\s\"'<>,)]+", lambda match: shown(match[0]), text)


def _secrets() -> Iterator[str]:
    """Every secret of the keyring and of the environment that is long enough to be told from ordinary words."""
    values = [value for one in _ring.noted.values() for name, value in one.values.items() if name in _SECRET]
    values += [
        value for name, value in os.environ.items() if re.match(r"(AWS|AZURE|GOOGLE)_.*(KEY|SECRET|TOKEN)", name)
    ]
    for value in values:
        yield from (one for one in (value.values() if isinstance(value, dict) else [str(value)]) if len(one) > 3)
