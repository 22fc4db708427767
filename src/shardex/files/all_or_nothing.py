"""All or nothing: what writers and transactions have in common, whatever they write.

They take what they are told until they are closed, which publishes all of it, or given up, which leaves everything as
it was. What publishing and forgetting means is for each of them to say.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from shardex.errors import ClosedError

__all__ = ["AllOrNothing"]


class AllOrNothing:
    """Ends once: by `close`, or by `abort`; at the end of a ``with`` block by the one, or by the other on an exception.

    >>> class Note(AllOrNothing):
    ...     path = "note"
    ...     def _publish(self): print("published")
    ...     def _forget(self): print("forgotten")
    >>> with Note() as note: pass
    published
    >>> note._check_open()
    Traceback (most recent call last):
    shardex.errors.ClosedError: note: expected an open writer, this one is closed
    """

    path: str
    """Where it writes."""
    _noun = "writer"
    _closed = _given_up = False

    def _publish(self) -> None:
        raise NotImplementedError

    def _forget(self) -> None:
        raise NotImplementedError

    def _check_open(self) -> None:
        if self._closed:
            state = "was given up; nothing was written" if self._given_up else "is closed"
            raise ClosedError(f"{self.path}: expected an open {self._noun}, this one {state}")

    def close(self) -> None:
        """Do all of it; if that fails, everything is as it was before."""
        if self._closed and not self._given_up:
            return
        self._check_open()
        try:
            self._publish()
        except BaseException:
            self.abort()
            raise
        self._closed = True

    def abort(self) -> None:
        """Leave everything as it was before."""
        if not self._closed:
            self._closed = self._given_up = True
            self._forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
