"""Error classes: the documented tree, pickling, and the translation of system errors."""

from __future__ import annotations

import errno
import inspect
import os
import pickle
import re

import pytest

from shardex import errors
from shardex.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    FieldError,
    MissingExtraError,
    NotFoundError,
    ShardexError,
    SourceError,
    StorageFullError,
    storage_errors,
)

CLASSES = [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, ShardexError)]


def example(kind: type[ShardexError]) -> ShardexError:
    if issubclass(kind, MissingExtraError):
        return kind("torch", "torch", "a loader")
    return kind(errno.EIO, "a message", "a path") if issubclass(kind, OSError) else kind("a message")


def test_tree_in_the_docstring_equals_the_classes() -> None:
    drawn: list[tuple[str, str]] = []
    above = ["ShardexError"]
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"    ([│├└─ ]*)── (\w+)(?: \((.*?)\))?", line):
            depth = len(match[1]) // 4 + 1
            above[depth:] = [match[2]]
            drawn += [(match[2], parent) for parent in [above[depth - 1], *filter(None, (match[3] or "").split(", "))]]
    made = [(kind.__name__, base.__name__) for kind in CLASSES if kind is not ShardexError for base in kind.__bases__]
    assert sorted(drawn) == sorted(made)


def test_all_lists_every_error() -> None:
    functions = ["nearest", "storage_errors", "unknown_field", "with_next_step"]
    assert [*sorted(kind.__name__ for kind in CLASSES), *functions] == errors.__all__


@pytest.mark.parametrize("kind", CLASSES)
def test_errors_can_be_pickled(kind: type[ShardexError]) -> None:
    error = example(kind)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)


def test_field_error_shows_its_message_without_quotes() -> None:
    assert str(FieldError("no such field 'x'")) == "no such field 'x'"
    assert str(FieldError()) == ""


def test_missing_extra_error_shows_the_pip_command() -> None:
    assert str(MissingExtraError("torch", "all", "a loader")) == (
        "a loader needs torch, which is not installed: pip install 'shardex[all]'"
    )


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOENT, NotFoundError),
        (errno.ENOTDIR, NotFoundError),
        (errno.EEXIST, AlreadyExistsError),
        (errno.ENOTEMPTY, AlreadyExistsError),
        (errno.EACCES, AccessDeniedError),
        (errno.EPERM, AccessDeniedError),
        (errno.EROFS, AccessDeniedError),
        (errno.ENOSPC, StorageFullError),
        (errno.EDQUOT, StorageFullError),
        (errno.EFBIG, StorageFullError),
        (errno.EIO, SourceError),
        (errno.EISDIR, SourceError),
    ],
)
def test_storage_errors_translates_errno(code: int, kind: type[SourceError]) -> None:
    with pytest.raises(SourceError, match=r"cannot move: .*'/a/path'") as caught, storage_errors("/a/path", "move"):
        raise OSError(code, os.strerror(code), "another path")
    assert type(caught.value) is kind
    assert (caught.value.errno, caught.value.filename) == (code, "/a/path")
    assert isinstance(caught.value.__cause__, OSError)


def test_storage_errors_translates_an_error_without_errno() -> None:
    with pytest.raises(SourceError, match="cannot move: strange") as caught, storage_errors("/a/path", "move"):
        raise OSError("strange")
    assert caught.value.errno == errno.EIO


def test_storage_errors_leaves_other_errors_unchanged() -> None:
    mine = NotFoundError(errno.ENOENT, "mine", "x")
    for error in (mine, ValueError("no storage")):
        with pytest.raises(type(error)) as caught, storage_errors("/a/path", "move"):
            raise error
        assert caught.value is error
