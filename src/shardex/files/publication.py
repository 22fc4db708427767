"""How new files become visible at a place: the interface `Publication`, and what may be there before.

`local_publication` moves a folder into place, links its files into an existing one, or adds their bytes to files there;
`upload` stores files one by one at a URL. `staging.publication_at` chooses. A stream of samples and the parts of a job
take the same way: their files are in a temporary folder, or are copied inside of the storage (`Publication.add`).
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardex.errors import AlreadyExistsError, ArgumentError, storage_errors
from shardex.sources import LocalSource, Place

MODES = ("create", "append", "overwrite")
Copy = Callable[[Mapping[str, str], str | None], None]
"""Copies files inside of the storage under new names: into a local folder, or with None into the target."""


def check_mode(
    place: Place, mode: str, *, known: bool = False, remedy: str = 'pass mode="append" or mode="overwrite"'
) -> bool:
    """Return True if something exists at `place`; raise an error if the mode does not allow that.

    `known` means that the caller has already found something there; `remedy` says what the user can do about it.
    """
    if mode not in MODES:
        raise ArgumentError(f"expected mode to be one of {', '.join(MODES)}, got {mode!r}")
    path = place.url
    with storage_errors(path, "look at"):
        exists = known or not place.is_empty()
    if exists and mode == "create":
        raise AlreadyExistsError(errno.EEXIST, f"a file or folder exists there already; {remedy}", path)
    if exists and place.root_kind() == "file":
        raise AlreadyExistsError(errno.EEXIST, "expected a folder, got a file", path)
    return exists


class Publication(ABC):
    """Publishes new files below the root of a place: all of them, or none if it fails.

    `owned` is a regular expression of all files of the format: overwriting raises an error if there are others.
    `publish_last` lists files that come after all others: those by which the format recognises a dataset. In mode
    "append", `replaces` is a regular expression of the files there that the new ones take the place of. `owner` is the
    number of a publication that several runs of a job may try to make, one after another or at the same time.
    """

    can_append: bool
    """True if files may be added to those that are there."""

    def __init__(
        self,
        place: Place,
        mode: str,
        owned: str = ".*",
        *,
        publish_last: Sequence[str] = (),
        replaces: str | None = None,
        owner: str = "",
    ) -> None:
        self.place, self.mode, self.publish_last = place, mode, publish_last
        self._owned, self._replaces, self._owner = owned, replaces, owner

    @abstractmethod
    def check(self) -> bool:
        """Return True if there are files that new ones are added to or replace; raise an error if none may be there."""

    @abstractmethod
    def begin(self) -> bool:
        """Return what `check` returns, after removing what a writer has left that was killed."""

    @abstractmethod
    def temporary_folder(self, wanted: str | None) -> str:
        """Return the path of the temporary folder: `wanted` if files can be published from there, or a new one."""

    @abstractmethod
    def make(self, folder: str) -> None:
        """Create the temporary folder."""

    @abstractmethod
    def existing(self) -> list[str]:
        """Return the files that are there, and those that another writer is adding."""

    @abstractmethod
    def add(self, names: Mapping[str, str], copy: Copy, folder: str) -> None:
        """Publish copies, too: `names` has the final name of each file, by its path for `copy`."""

    @abstractmethod
    def publish(self, staged: LocalSource, stored: Callable[[], None]) -> None:
        """Make the files in the temporary folder and those that were added durable and visible.

        `stored` is called when all files are there and other runs only have to make them visible.
        """

    @abstractmethod
    def extend(self, staged: LocalSource, index: str, adjust: Callable[[bytes, Mapping[str, int]], bytes]) -> None:
        """Add the bytes of the files to those with the same names (`extend_files.extend_together`)."""

    @abstractmethod
    def state(self, extension: str) -> Any:
        """Return which files with this extension are there now; None if files are never added to others."""

    @abstractmethod
    def was_made(self, files: Sequence[str], is_stored: bool) -> bool:
        """Return True if an earlier run has published, among others, these files, or has `stored` all of them."""
