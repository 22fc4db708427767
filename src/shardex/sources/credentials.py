"""Settings and secrets for storages, by URL prefix; they are kept out of datasets, pickles and messages.

A dataset holds only URLs. `storage` registers settings in this process; without them the environment is used
(``AWS_*``, ``GOOGLE_*``, ``AZURE_*``). `export_credentials` and `import_credentials` pass them to a worker process
over a private pipe. A process that the user's program starts (a worker of torch) gets them through a keyring: a private
file, of which the pickle of a dataset holds only the path. Texts for users go through `redact_url` or `redact`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn
from urllib.parse import unquote

from shardex.errors import ArgumentError, UnsafeError
from shardex.other_names import STORAGE, instead

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
_REDIS = {"username": "", "password": "", "ca_file": "", "certificate_file": "", "key_file": ""}
_AT = {"password": "", "service": "", "directory": ""}
STORES: dict[str, dict[str, str]] = {
    "s3": _S3,
    "gs": _GS,
    "az": _AZ,
    "http": _HTTP,
    "https": _HTTP,
    "redis": _REDIS,
    "rediss": _REDIS,
    "at": _AT,
}
"""Settings of each kind of store, by scheme, with their names in obstore."""

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
MIN_SPEED = 128 << 10
"""Minimum speed of a connection in bytes per second: timeouts are extended by the size of a request / this speed."""


@dataclass(frozen=True, eq=False)
class Settings:
    """Settings of one URL prefix; its repr shows names only, and it cannot be pickled.

    >>> Settings({"region": "eu-west-1", "secret_access_key": "shh"})
    Settings(region, secret_access_key)
    """

    values: Mapping[str, Setting] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Settings({', '.join(sorted(self.values))})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("settings may hold secrets and are not pickled: use export_credentials and import_credentials")

    def number(self, name: str) -> float:
        """Return a numeric setting or its default."""
        value = self.values.get(name, _DEFAULTS[name])
        assert isinstance(value, int | float)
        return value

    def store(self, scheme: str) -> dict[str, Setting]:
        """Return the settings of the store under the names that obstore uses."""
        return {name: self.values[ours] for ours, name in STORES[scheme].items() if name and ours in self.values}


@dataclass
class _Registry:
    """Settings of this process by URL prefix, and a number that grows with each change."""

    settings: dict[str, Settings] = field(default_factory=dict)
    version: int = 0


_registry = _Registry()
_NO_SETTINGS = Settings()


def storage(prefix: str, **settings: Setting) -> None:
    """Set how this process reaches the storage at a URL prefix; the longest matching prefix applies.

    For all: `timeout` (seconds without progress, 15), `deadline` (seconds for one request with its retries, 120),
    `retries` (6), `concurrency` (requests at once, 32), `allow_http` (no encryption), `allow_invalid_certificates`.
    For ``s3://``: `endpoint`, `region`, `access_key_id`, `secret_access_key`, `token`, `anonymous`, `virtual_hosted`,
    `request_payer`, `role_arn`. For ``gs://``: `service_account` (a file), `service_account_key` (its content),
    `token`, `anonymous`, `endpoint`. For ``az://``: `account_name`, `account_key`, `sas_token`, `token`, `tenant_id`,
    `client_id`, `client_secret`, `anonymous`, `endpoint`. For ``http(s)://``: `username` and `password`, `token`,
    `headers`. For ``redis(s)://``: `username`, `password`, `ca_file`, `certificate_file`, `key_file`. For ``at://``:
    `password`, `service`, `directory`. Without settings, earlier ones for this prefix are removed.

    >>> storage("s3://my-bucket", endpoint="https://minio.example", region="us-east-1", anonymous=True)
    >>> settings_for("s3://my-bucket/data/x.tar")
    Settings(anonymous, endpoint, region)
    >>> storage("s3://my-bucket", colour="red")
    Traceback (most recent call last):
    shardex.errors.ArgumentError: storage('s3://my-bucket'): expected settings among access_key_id, ..., got 'colour'
    >>> storage("s3://my-bucket")
    """
    key = _normalized(prefix)
    known = {**_DEFAULTS, **STORES[key.partition("://")[0]]}
    if unknown := [name for name in settings if name not in known]:
        among, got = ", ".join(sorted(known)), ", ".join(map(repr, unknown))
        hint = instead(STORAGE, unknown[0], known)
        raise ArgumentError(f"storage({redact_url(prefix)!r}): expected settings among {among}, got {got}{hint}")
    for name, value in settings.items():
        _check_value(prefix, name, value)
    if _registry.settings.get(key, _NO_SETTINGS).values != settings:  # connections stay open if nothing changes
        own = {name: dict(value) if isinstance(value, dict) else value for name, value in settings.items()}
        _register({key: Settings(own) if own else None})


def _check_value(prefix: str, name: str, value: Setting) -> None:
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
        raise ArgumentError(f"storage({redact_url(prefix)!r}): expected {name} to be {expected}, got {got}")


def _register(entries: Mapping[str, Settings | None]) -> None:
    kept = {prefix: settings for prefix, settings in _registry.settings.items() if prefix not in entries}
    _registry.settings = kept | {prefix: settings for prefix, settings in entries.items() if settings is not None}
    _registry.version += 1


def credentials_version() -> int:
    """Return a number that changes with every change of settings, so that callers can cache settings."""
    return _registry.version


def is_in_use(settings: Settings) -> bool:
    """Return True if these settings are still registered."""
    return settings is _NO_SETTINGS or any(settings is one for one in _registry.settings.values())


def settings_for(url: str) -> Settings:
    """Return the settings of the longest prefix of a URL, or empty settings."""
    url = _normalized(url)
    known = _registry.settings
    matching = [one for one in known if url == one or url.startswith(one if one.endswith("://") else f"{one}/")]
    return known[max(matching, key=len)] if matching else _NO_SETTINGS


def has_credentials(url: str) -> bool:
    """Return True if the user set credentials or headers for a web server, and so chose to trust it.

    >>> storage("https://lab.example", token="t"); storage("http://", timeout=5)
    >>> has_credentials("https://lab.example/a.tar"), has_credentials("http://other.example")
    (True, False)
    >>> storage("https://lab.example"); storage("http://")
    """
    return not _HTTP.keys().isdisjoint(settings_for(url).values)


def _normalized(url: str) -> str:
    """Return a URL in its normal form: scheme and web host in lower case, no slash at the end, no user, no query."""
    scheme, found, rest = url.partition("://")
    scheme = scheme.lower()
    if not found or scheme not in STORES:
        known = ", ".join(f"{name}://" for name in STORES)
        raise ArgumentError(f"storage: expected a URL prefix that begins with {known}, got {redact_url(url)!r}")
    host, slash, path = rest.partition("?")[0].partition("/")
    host = host.rpartition("@")[2]
    return (
        f"{scheme}://{host.lower() if 'http' in scheme else host}{slash}{path}".rstrip("/") if rest else f"{scheme}://"
    )


def export_credentials(*, secrets: bool = True) -> bytes:
    """Return all settings for another process; with secrets only for a private pipe to a process of this machine.

    Without secrets they may be stored and sent over a network: the other process takes its secrets from its own
    environment.

    >>> storage("s3://there", region="eu-west-1", secret_access_key="shh"); export_credentials(secrets=False)
    b'{"s3://there": {"region": "eu-west-1"}}'
    >>> storage("s3://there")
    """
    known = _registry.settings.items()
    chosen = {prefix: {k: v for k, v in one.values.items() if secrets or k not in _SECRET} for prefix, one in known}
    return json.dumps({prefix: values for prefix, values in chosen.items() if values}).encode()


def import_credentials(exported: bytes) -> None:
    """Register the settings that another process exported; if they have no secrets, those of this process stay.

    >>> storage("s3://there", region="eu-west-1"); exported = export_credentials()
    >>> storage("s3://there", access_key_id="me")
    >>> import_credentials(exported); settings_for("s3://there"); storage("s3://there")
    Settings(access_key_id, region)
    """
    entries = {}
    for prefix, values in json.loads(exported).items():
        before = _registry.settings.get(prefix, _NO_SETTINGS).values
        kept = {k: v for k, v in before.items() if k in _SECRET} if _SECRET.isdisjoint(values) else {}
        entries[prefix] = Settings({**kept, **values})
    _register(entries)


_keyrings: dict[tuple[int, int], str] = {}
"""Path of the keyring of this process, by process and version of the settings."""


def keyring() -> str:
    """Return the path of a private file with all settings if a child process is being started, else an empty text.

    Only then is it written, because a dataset that is an argument of a new process is unpickled before the process can
    run any code of the user. It is removed when this process ends.
    """
    from multiprocessing.context import get_spawning_popen

    if not _registry.settings or get_spawning_popen() is None:
        return ""
    key = os.getpid(), _registry.version
    if not os.path.exists(_keyrings.get(key, "")):  # the system may remove old temporary files
        folder = tempfile.mkdtemp(prefix="shardex-")  # only this user can read it
        weakref.finalize(_registry, _remove_keyring, os.getpid(), folder)
        path = os.path.join(folder, "keyring.json")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(export_credentials())
        _keyrings[key] = path
    return _keyrings[key]


def _remove_keyring(pid: int, folder: str) -> None:
    if pid == os.getpid():  # not a forked child
        shutil.rmtree(folder, ignore_errors=True)


def read_keyring(path: str) -> None:
    """Register the settings of a keyring for prefixes that have none here; a keyring that is gone is ignored."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise UnsafeError(f"{path}: expected a keyring that only this user can read, got another file")
        entries = {prefix: Settings(values) for prefix, values in json.loads(file.read()).items()}
    if new := {prefix: settings for prefix, settings in entries.items() if prefix not in _registry.settings}:
        _register(new)


def strip_credentials(url: str) -> str:
    """Return the URL without ``user:password@``, which is registered for its host instead.

    >>> strip_credentials("https://me:pw@host.example/data"), settings_for("https://host.example/data")
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
    _register({_normalized(f"{scheme}://{host}"): Settings(values)})
    return f"{scheme}://{host}{slash}{path}"


def redact_url(url: str) -> str:
    """Return a URL for messages: without user, password and query, which may hold a signature.

    >>> redact_url("https://me:pw@host/a.tar?X-Amz-Signature=0f3a"), redact_url("s3://bucket/a")
    ('https://***@host/a.tar?***', 's3://bucket/a')
    """
    url, query, _ = url.partition("?")
    scheme, found, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    if found and "@" in host:
        url = f"{scheme}://{_HIDDEN}@{host.rpartition('@')[2]}{slash}{path}"
    return url + (query and f"?{_HIDDEN}")


def redact(text: str) -> str:
    """Return a message of a server or library without known secrets and without secrets in URLs.

    >>> redact("cannot GET https://me:pw@host/a?sig=1 now")
    'cannot GET https://***@host/a?*** now'
    """
    for secret in _secrets():
        text = text.replace(secret, _HIDDEN)
    return re.sub(r"\b[a-z0-9+.-]+://[^\s\"'<>,)]+", lambda match: redact_url(match[0]), text)


def _secrets() -> Iterator[str]:
    """Yield the secrets of settings and environment that are too long to be ordinary words."""
    values = [value for one in _registry.settings.values() for name, value in one.values.items() if name in _SECRET]
    values += [
        value for name, value in os.environ.items() if re.match(r"(AWS|AZURE|GOOGLE)_.*(KEY|SECRET|TOKEN)", name)
    ]
    for value in values:
        yield from (one for one in (value.values() if isinstance(value, dict) else [str(value)]) if len(one) > 3)
