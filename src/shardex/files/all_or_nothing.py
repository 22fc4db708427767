"""`AllOrNothing`: the common base class of writers and transactions, which are open, then closed or aborted.

`AllOrNothing` keeps the state and decides when to publish and when to discard. Its subclasses implement these steps:
`StagedWriter` in `staging`, the writers of `native` and `dataset`, and `Edit`.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from shardex.errors import ClosedError


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
                ResourceWarning,
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
