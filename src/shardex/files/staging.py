"""Writers and transactions that publish all or nothing, and the temporary folder whose files are published in one step.

`AllOrNothing` is their common base class: they are open, then closed or aborted. It keeps the state and decides when to
publish and when to discard; the writers of `native` and `dataset`, `Edit` and `StagedWriter` implement these steps.

Formats whose shards are plain files write them into a `Stage`, a temporary folder; their writers derive from
`StagedWriter`. Finished parts of a job are added to a stage, too. How its files become visible is left to
`publication`.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import TracebackType
from typing import Any, Self

from shardex.errors import ArgumentError, ClosedError, storage_errors
from shardex.files.patterns import natural_order
from shardex.files.publication import Copy, publication_at
from shardex.files.temporary_folders import FolderLock, remove_abandoned
from shardex.sources import LocalSource


class AllOrNothing(ABC):
    """A writer or transaction that ends once: `close` publishes all changes, `abort` discards all of them.

    A ``with`` block closes it at the end, or aborts it if the block raises.

    >>> class Note(AllOrNothing):
    ...     path = "note"
    ...     def _publish(self): print("published")
    ...     def _discard(self): print("discarded")
    >>> with Note() as note: pass
    published
    >>> note._check_open()
    Traceback (most recent call last):
    shardex.errors.ClosedError: note: expected an open writer, this one is closed
    """

    path: str
    """The folder or URL that is written."""
    _noun = "writer"
    """Name of this kind of object in error messages."""
    _closed = False
    """True after `close` and after `abort`. Hot paths test it before they call `_check_open`."""
    _aborted = False

    def _content(self) -> str:
        """Return what was given to it, and is lost if it is dropped now, such as "3 samples"; empty if nothing was.

        Only classes that users hold return something: a writer inside another one is dropped together with it.
        """
        return ""

    def __repr__(self) -> str:
        state = "aborted" if self._aborted else "closed" if self._closed else "open"
        held = self._content()
        return f"{type(self).__name__}({self.path!r}, {state}{held and f', {held}'})"

    def __del__(self) -> None:
        if not self._closed and (lost := self._content()):
            warnings.warn(
                f"{self.path}: expected the {self._noun} to be closed, but it was dropped: {lost} not written; use it "
                "in a with block, or call close()",
                UserWarning,
                stacklevel=2,
                source=self,
            )

    @abstractmethod
    def _publish(self) -> None:
        """Make everything durable and visible. If this raises, `_discard` is called."""

    @abstractmethod
    def _discard(self) -> None:
        """Remove everything that was written so far and release what is open; called at most once."""

    def _check_open(self) -> None:
        if self._closed:
            state = "was aborted; nothing was written" if self._aborted else "is closed"
            raise ClosedError(f"{self.path}: expected an open {self._noun}, this one {state}")

    @contextmanager
    def _abort_on_error(self) -> Iterator[None]:
        """Abort if the block raises: for steps after which a writer cannot continue."""
        try:
            yield
        except BaseException:
            self.abort()
            raise

    def close(self) -> None:
        """Publish everything; if that fails, discard everything. Closing again does nothing."""
        if self._closed and not self._aborted:
            return
        self._check_open()
        with self._abort_on_error():
            self._publish()
        self._closed = True

    def abort(self) -> None:
        """Discard everything that was not published; the target stays unchanged."""
        if not self._closed:
            self._closed = self._aborted = True
            self._discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class StagedWriter(AllOrNothing):
    """Base class of writers whose files are written to a `Stage`, which `close` publishes.

    The options are those of `Stage`. A subclass implements `append` and `_finish`. If it opens files
    itself, it overrides `_discard` to close them first.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        mode: str,
        owned: str,
        *,
        publish_last: Sequence[str] = (),
        replaces: str | None = None,
    ) -> None:
        self._stage = Stage(path, mode, owned, publish_last=publish_last, replaces=replaces)
        self.path = self._stage.path

    @abstractmethod
    def _finish(self) -> None:
        """Write everything that is still buffered to the stage."""

    def written(self) -> str:
        """Return the folder that has the samples that were added; nothing can be added or published any more."""
        self._finish()
        return self._stage.place.url

    def _publish(self) -> None:
        self._finish()
        self._stage.publish()

    def _discard(self) -> None:
        self._stage.discard()


class Stage:
    """A temporary folder that becomes `path` when it is published; it is made with the first file.

    `folder` is the path of the temporary folder, for a local target; by default it has a new name. With `one_file` the
    only file in it becomes `path`. The other options are those of `Publication`.

    >>> import tempfile; target = os.path.join(tempfile.mkdtemp(), "new")
    >>> stage = Stage(target, "create"); stage.place.put("a.txt", b"hello"); os.path.exists(target)
    False
    >>> stage.publish(); os.listdir(target)
    ['a.txt']
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        mode: str,
        owned: str = ".*",
        *,
        publish_last: Sequence[str] = (),
        folder: str | None = None,
        replaces: str | None = None,
        owner: str = "",
        one_file: bool = False,
    ) -> None:
        self._target = publication_at(
            path, mode, owned, publish_last=publish_last, replaces=replaces, owner=owner, one_file=one_file
        )
        self.path, self.mode = self._target.place.url, mode
        self._exists = self._target.begin()
        self._folder = self._target.temporary_folder(folder)
        self._lock: FolderLock | None = None
        if folder is None:
            remove_abandoned(self._folder)
        _check_writable(self._folder)

    @cached_property
    def place(self) -> LocalSource:
        """The temporary folder: files are written here."""
        with storage_errors(self._folder, "create"):
            self._lock = FolderLock(self._folder, self._target.make)
        return LocalSource(self._folder)

    @property
    def existing(self) -> list[str]:
        """In mode "append": the files of the target in natural order, and those that another writer is adding."""
        return self._target.existing() if self._exists and self.mode == "append" else []

    def next_number(self, prefix: str, extension: str) -> int:
        """Return the number of the next file `{prefix}-{number}{extension}`: the highest existing one plus 1."""
        pattern = re.compile(rf"{re.escape(prefix)}-(\d+){re.escape(extension)}")
        existing = self.existing
        found = [int(match[1]) for path in existing if (match := pattern.fullmatch(path))]
        number = max(found, default=-1) + 1
        name = f"{prefix}-{number:05d}{extension}"
        shards = [path for path in existing if path.lower().endswith(extension)]
        if natural_order([*shards, name])[-1] != name:
            raise ArgumentError(
                f"{self.path}: expected shards that sort before {name}, got {natural_order(shards)[-1]}: samples would "
                "not be appended at the end; pass a prefix that sorts after it"
            )
        return number

    def append(self, path: str, pieces: Sequence[Any], size: int) -> int:
        """Write pieces after the first `size` bytes of a file and return its new size; can be repeated if it fails.

        >>> import tempfile; stage = Stage(os.path.join(tempfile.mkdtemp(), "new"), "create")
        >>> stage.append("a.txt", [b"hel", b"lo"], 0), stage.append("a.txt", [b"p"], 3)
        (5, 4)
        """
        full = self.place.path(path)
        with storage_errors(full, "write"), open(full, "ab", buffering=0) as file:
            file.truncate(size)
            data = memoryview(b"".join(pieces))
            while data:
                data = data[file.write(data) :]
            return os.fstat(file.fileno()).st_size

    def add(self, names: Mapping[str, str], copy: Copy) -> None:
        """Publish copies of files of the storage, too: `names` has the final name of each, by its path for `copy`."""
        self._target.add(names, copy, self._folder)

    def publish(self, stored: Callable[[], None] = lambda: None) -> None:
        """Publish all files, and remove the temporary folder; `stored` is that of `Publication.publish`."""
        self._target.publish(self.place, stored)  # the folder is published even if it has no files
        self.discard()

    def extend(self, index: str, adjust: Callable[[bytes, Mapping[str, int]], bytes]) -> None:
        """Publish by adding the files to those of the target with the same names, if it is there.

        `index` and `adjust` are those of `append_together.extend_together`.
        """
        self._target.extend(self.place, index, adjust)
        self.discard()

    def discard(self) -> None:
        """Remove the temporary folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._lock is not None:
            self._lock.release()


def _check_writable(folder: str) -> None:
    """Raise an error if a folder cannot be made, without making it: a writer is often opened hours before its end."""
    parent = os.path.dirname(folder)
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    if not os.access(parent, os.W_OK | os.X_OK):
        with storage_errors(folder, "create"):
            os.mkdir(os.path.join(parent, os.path.basename(folder)))  # for the error of the system
            os.rmdir(os.path.join(parent, os.path.basename(folder)))
