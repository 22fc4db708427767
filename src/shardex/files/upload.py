"""A finished folder of shards, file by file to a place where nothing can be moved or exchanged as a whole.

Every file appears whole. Those that say what the others are come last, so that a dataset that has one is not recognised
before it is complete; of formats that have none, readers see the first shards before the last. Only one of several
writers gets the place, and one that fails takes back what it has put there.
"""

from __future__ import annotations

import errno
from contextlib import suppress

from shardex.errors import AlreadyExistsError, ShardexError
from shardex.files.find import natural_order
from shardex.sources import Place, Source

__all__ = ["upload"]

_CLAIM = ".shardex/claim"
_LAST = ("bins.json", "tokens.json", "index.dat", "index.sqlite")
"""Files without which the shards beside them are not taken for a dataset."""


def upload(folder: Source, place: Place) -> None:
    """Copy all files of a folder; an error if anything is there, or comes meanwhile.

    >>> from shardex.sources.memory import MemorySource; place = MemorySource()
    >>> upload(MemorySource({"index.dat": b"1", "bin2": b"2", "bin10": b"3"}), place); list(place.files)
    ['bin2', 'bin10', 'index.dat']
    """
    if not place.put_if_absent(_CLAIM, b""):
        problem = "somebody else is writing here, or died and left this file"
        raise AlreadyExistsError(errno.EEXIST, problem, f"{place.url}/{_CLAIM}")
    put = [_CLAIM]
    try:
        if others := [path for path in place.paths() if path != _CLAIM]:
            raise AlreadyExistsError(errno.EEXIST, "somebody else wrote here meanwhile", f"{place.url}/{others[0]}")
        for path in sorted(natural_order(folder.paths()), key=lambda path: path in _LAST and 1 + _LAST.index(path)):
            put.append(path)
            place.put(path, folder.map(path))
    except BaseException:
        for path in reversed(put):
            with suppress(ShardexError):
                place.remove(path)
        raise
    place.remove(_CLAIM)
