"""Files of tokens that appear whole: after each input file, or together with the index at the end of a run."""

from __future__ import annotations

import errno
import os
import secrets
from typing import Any

from shardex.errors import AlreadyExistsError, ClosedError
from shardex.files import Stage

_BUFFER = 4 << 20


class TokenFiles:
    """Writes one file of tokens after another into stages.

    In a run of an indexer (`begin_run`) nothing appears before its end. Files inside the folder of the stage of the
    index go into that stage, so that they appear with the index; others into a stage of their folder.
    """

    def __init__(self) -> None:
        self.path = ""
        """Final path of the current file; empty between files."""
        self._in_run = False
        self._shared: Stage | None = None
        self._own: dict[str, Stage] = {}
        self._taken: set[str] = set()
        """Final paths of the files that were begun."""
        self._current: tuple[Stage, str] | None = None
        self._pieces: list[bytes] = []
        self._waiting = self._written = 0

    def begin_run(self, shared: Stage | None) -> None:
        """Begin a run, whose files appear at its end."""
        self.discard()
        self._in_run, self._shared = True, shared

    def begin(self, folder: str, stem: str, postfix: str) -> None:
        """Begin the file of an input; one of the same name as another input of this run gets a number."""
        self.path = os.path.join(folder, f"{stem}-{postfix}.bin")
        number = 1
        while os.path.abspath(self.path) in self._taken:
            number += 1
            self.path = os.path.join(folder, f"{stem}-{number}-{postfix}.bin")
        if os.path.exists(self.path):
            raise AlreadyExistsError(errno.EEXIST, "expected no file of tokens, got one; remove it first", self.path)
        self._taken.add(os.path.abspath(self.path))
        stage = self._stage_of(folder)
        inside = os.path.relpath(os.path.realpath(self.path), stage.path).replace(os.sep, "/")
        os.makedirs(os.path.dirname(stage.place.path(inside)), exist_ok=True)
        self._current, self._pieces, self._waiting, self._written = (stage, inside), [], 0, 0

    def _stage_of(self, folder: str) -> Stage:
        real = os.path.realpath(folder)
        if self._shared is not None and os.path.commonpath([real, self._shared.path]) == self._shared.path:
            return self._shared
        if real not in self._own:
            os.makedirs(real, exist_ok=True)
            temporary = os.path.join(real, f".{secrets.token_hex(8)}.tmp")
            self._own[real] = Stage(real, "append", folder=temporary)
        return self._own[real]

    def write(self, data: Any) -> None:
        """Add bytes to the current file."""
        if self._current is None:
            raise ClosedError("expected prepare() before the first line of a file, got none")
        self._pieces.append(data)
        self._waiting += len(data)
        if self._waiting >= _BUFFER:
            self._flush()

    def _flush(self) -> None:
        if self._current is not None:
            stage, inside = self._current
            self._written = stage.append(inside, self._pieces, self._written)
            self._pieces, self._waiting = [], 0

    def end(self) -> None:
        """End the current file; outside of a run it appears now."""
        self._flush()
        self._current, self.path = None, ""
        if not self._in_run:
            self.publish()

    def publish(self) -> None:
        """Let the files appear that are not in the stage of the index."""
        for folder in list(self._own):
            self._own.pop(folder).publish()

    def end_run(self) -> None:
        """Publish the files of a run and end it."""
        self.publish()
        self.discard()

    def discard(self) -> None:
        """Remove what did not appear, and forget the run."""
        for stage in self._own.values():
            stage.discard()
        self._own, self._taken, self._current, self._shared = {}, set(), None, None
        self._in_run, self.path, self._pieces, self._waiting = False, "", [], 0
