"""Settings and secrets by URL prefix: which ones a URL gets, and that they are never shown."""

from __future__ import annotations

import base64
import logging
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.errors import ArgumentError
from shardex.sources import credentials, export_credentials, import_credentials, open_source, redact_url, storage
from shardex.sources.credentials import Settings, credentials_version, keyring, redact, settings_for
from shardex.sources.object_store import ObjectSource
from tests.servers import KEY, SECRET
from tests.servers.faulty import FaultyServer


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Restore the settings after each test."""
    before = credentials._registry.settings
    yield
    credentials._registry.settings = before
    credentials._registry.version += 1


def region(url: str) -> Any:
    return settings_for(url).values.get("region")


def test_the_longest_prefix_counts() -> None:
    storage("s3://", region="all")
    storage("s3://bucket", region="bucket")
    storage("s3://bucket/a/", region="a")
    assert region("s3://other/x") == "all"
    assert region("s3://bucket") == region("s3://bucket/") == region("s3://bucket/ab") == "bucket"
    assert region("s3://bucket/a") == region("s3://bucket/a/b?x=1") == "a"
    assert region("s3://bucket2/a") == "all"
    assert region("gs://bucket") is None
    storage("s3://bucket/a")
    assert region("s3://bucket/a") == "bucket"


def test_settings_of_two_prefixes_are_not_merged() -> None:
    storage("s3://", endpoint="https://one.example", access_key_id="one")
    storage("s3://bucket", endpoint="https://two.example")
    assert dict(settings_for("s3://bucket/x").values) == {"endpoint": "https://two.example"}


def test_web_hosts_ignore_case() -> None:
    storage("HTTPS://Data.Example", token="t")
    assert settings_for("https://data.example/Sets").values == {"token": "t"}
    assert settings_for("https://data.example:8443/").values == {}


@pytest.mark.parametrize(
    ("url", "settings", "message"),
    [
        ("s3://b", {"secret": "x"}, r"s3://b.*expected settings among access_key_id, .*virtual_hosted, got 'secret'"),
        ("https://h", {"access_key_id": "x"}, "expected settings among .*username, got 'access_key_id'"),
        ("gs://b", {"region": "x"}, "service_account_key.*got 'region'"),
        ("s3://b", {"timeout": 0}, r"expected timeout to be a number of at least 0\.001, got 0"),
        ("s3://b", {"retries": 1.5}, "expected retries to be a whole number of at least 0, got 1.5"),
        ("s3://b", {"concurrency": 0}, "expected concurrency to be a whole number of at least 1"),
        ("s3://b", {"concurrency": True}, "expected concurrency"),
        ("s3://b", {"allow_http": 1}, "expected allow_http to be True or False, got 1"),
        ("s3://b", {"region": 5}, "expected region to be a string, got 5"),
        ("s3://b", {"secret_access_key": b"shh-shh"}, "expected secret_access_key to be a string, got a bytes$"),
        ("https://h", {"headers": {"X": 1}}, "expected headers to be a dict of strings, got a dict$"),
        ("ftp://h", {}, "expected a URL prefix that begins with s3://, .*got 'ftp://h'"),
        ("bucket", {}, "got 'bucket'"),
    ],
)
def test_wrong_settings_raise(url: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        storage(url, **settings)
    with pytest.raises(ArgumentError) as caught:
        storage(url, **settings)
    assert "shh-shh" not in str(caught.value)


def test_settings_show_no_values() -> None:
    storage("s3://b", access_key_id="AKIA123", secret_access_key="shh-shh", region="eu")
    settings = settings_for("s3://b")
    for text in (repr(settings), str(settings), f"{settings}", f"{[settings]}"):
        assert text.strip("[]") == "Settings(access_key_id, region, secret_access_key)"
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(settings)


def test_keyring_is_written_again_if_it_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary files are removed after some days, or the disk was full when it was first written."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("multiprocessing.context.get_spawning_popen", object)
    storage("s3://keyring", token="secret")
    shutil.rmtree(os.path.dirname(first := keyring()))
    assert (second := keyring()) != first and os.path.exists(second) and keyring() == second
    storage("s3://keyring", token="other")
    with monkeypatch.context() as full:
        full.setattr(credentials, "export_credentials", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            keyring()
    assert b"other" in Path(keyring()).read_bytes()


def test_credentials_are_exported_and_imported() -> None:
    storage("s3://b", secret_access_key="shh", retries=2, allow_http=True)
    storage("https://h", headers={"X-Key": "shh"})
    before = {prefix: dict(settings.values) for prefix, settings in credentials._registry.settings.items()}
    exported = export_credentials()
    storage("s3://b")
    storage("https://h")
    import_credentials(exported)
    assert {prefix: dict(settings.values) for prefix, settings in credentials._registry.settings.items()} == before


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://user:pw@host/a", "https://***@host/a"),
        ("https://user@host", "https://***@host"),
        ("https://u:p@ss@host/a@b", "https://***@host/a@b"),
        ("https://host/a?X-Amz-Signature=abc&b=c", "https://host/a?***"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("a/local/path", "a/local/path"),
    ],
)
def test_redact_url(url: str, text: str) -> None:
    assert redact_url(url) == text
    assert redact(f"see '{url}', please") == f"see '{text}', please"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), st.text("abcxyz019", min_size=8, max_size=20))
def test_secrets_are_redacted(around: str, secret: str) -> None:
    storage("s3://hypothesis", secret_access_key=secret)
    assert secret not in redact(f"{around}{secret}{around} {secret}")
    assert secret not in redact_url(f"https://{secret}:{secret}@host/x?{secret}")


def test_secrets_of_the_environment_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "from-the-environment")
    assert redact("bad key from-the-environment") == "bad key ***"


def test_user_and_password_move_from_the_url_to_the_settings(web: FaultyServer) -> None:
    web.files["a"] = b"content"
    url, basic = web.url(), f"Basic {base64.b64encode(b'me:hunter@2').decode()}"
    place = open_source(url.replace("://", "://me:hunter%402@"))
    assert place.url == url
    assert b"hunter" not in pickle.dumps(place)
    for one in (place, open_source(url)):
        assert bytes(one.load("a")) == b"content"
        assert web.headers[-1]["authorization"] == basic


def test_tokens_and_headers_reach_the_server(web: FaultyServer) -> None:
    web.files["a"] = b"content"
    storage(web.url(), token="abc", headers={"X-Extra": "yes"})
    open_source(web.url()).load("a")
    assert (web.headers[-1]["authorization"], web.headers[-1]["x-extra"]) == ("Bearer abc", "yes")


def test_a_source_uses_new_credentials(web: FaultyServer) -> None:
    web.files["a"] = b"content"
    place = open_source(web.url())
    place.load("a")
    assert "authorization" not in web.headers[-1]
    storage(web.url(), token="new")
    place.load("a")
    assert web.headers[-1]["authorization"] == "Bearer new"


def test_the_environment_is_used_without_settings(bucket: str, seaweed: str) -> None:
    ObjectSource(bucket).put("a", b"content")
    code = """
import sys
from shardex.sources import open_source
print(bytes(open_source(sys.argv[1]).load("a")).decode())
"""
    environment = {
        "AWS_ENDPOINT_URL": seaweed,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code, bucket],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("content\n", "")


def test_logs_show_no_secrets(bucket: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        ObjectSource(bucket).put("a", b"content")
        ObjectSource(bucket).load("a")
    assert SECRET not in caplog.text and KEY not in caplog.text


def test_defaults() -> None:
    assert [Settings().number(name) for name in ("timeout", "deadline", "retries", "concurrency")] == [15, 120, 6, 32]


def test_the_same_settings_again_change_nothing() -> None:
    storage("s3://again", region="eu-west-1")
    before, settings = credentials_version(), settings_for("s3://again")
    storage("s3://again", region="eu-west-1")
    assert (credentials_version(), settings_for("s3://again")) == (before, settings)
    storage("s3://again", region="eu-west-2")
    assert credentials_version() > before
    storage("s3://again")
    before = credentials_version()
    storage("s3://again")
    assert credentials_version() == before
    headers = {"X-Key": "1"}
    storage("https://again.example", headers=headers)
    headers["X-Key"], before = "2", credentials_version()
    storage("https://again.example", headers=headers)
    assert credentials_version() > before and settings_for("https://again.example").values["headers"] == headers
