"""The small messages between a crew and its workers: `frame` makes one, `Frames` reads them, `Kind` lists them."""

from __future__ import annotations

import struct
from enum import IntEnum

__all__ = ["Frames", "Kind", "frame"]


class Kind(IntEnum):
    """What a frame says. Its number is that of a task, unless it is said to be another."""

    # to a worker
    JOB = 0  # the pickle of what it shall do with each task
    TASK = 1  # the pickle of a task
    FORGET = 2  # tasks of lower numbers are not wanted any more
    FREE = 3  # the buffer of this number is not used any more
    # from a worker
    VALUE = 4  # the pickle of a result
    PLACED = 5  # where a result lies: the pickle of the buffer's number, the spans, and the buffers given up before
    RAISED = 6  # what the job raised, by `carry_error`
    SKIPPED = 7  # the task was forgotten
    NO_JOB = 8  # the text of the traceback that loading the job gave
    # to a worker again
    INITIALIZER = 9  # the pickle of what to call before the job is loaded


_HEAD = struct.Struct("<QQB")


def frame(kind: Kind, number: int = 0, body: bytes = b"") -> bytes:
    """One message for a socket.

    >>> Frames().feed(frame(Kind.TASK, 7, b"body"))
    [(1, 7, b'body')]
    """
    return _HEAD.pack(len(body), number, kind) + body


class Frames:
    """Puts the frames together again that a socket gives in pieces."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """The frames that these bytes complete."""
        self._rest += data
        frames, at, have = [], 0, len(self._rest)
        with memoryview(self._rest) as view:
            while have - at >= _HEAD.size:
                length, number, kind = _HEAD.unpack_from(view, at)
                begin, end = at + _HEAD.size, at + _HEAD.size + length
                if end > have:
                    break
                frames.append((kind, number, bytes(view[begin:end])))
                at = end
        del self._rest[:at]
        return frames
