"""What a dataset holds, in a form that can be compared: the exact content of every version that is there."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import shardex as sx
from shardex.sources import LocalSource
from shardex.store import clean, history
from shardex.store.manifest import files_of, read_manifest
from tests.faults.jobs import EDITS, after, make

State = dict[int, str]


def signature(samples: Iterable[Mapping[str, Any]]) -> str:
    """The same for the same samples, values, types and order, and for no others."""
    made = hashlib.sha256()
    for sample in samples:
        made.update(repr([(name, _plain(sample[name])) for name in sample]).encode())
    return made.hexdigest()


def _plain(value: Any) -> Any:
    return (value.dtype.str, value.tolist()) if isinstance(value, np.ndarray) else (type(value).__name__, value)


def state(folder: str | Path) -> State:
    """Every version with its signature; none where there is no dataset. Read in two ways, which agree."""
    there = os.path.join(folder, "_shardex")
    if not os.path.isdir(there) or not os.listdir(there):
        return {}
    found = {}
    for version in history(folder):
        ds = sx.open(folder, version=version.number)
        found[version.number] = signature(ds)
        assert found[version.number] == signature(ds[row] for row in range(len(ds)))
        assert len(ds) == version.samples
    assert signature(sx.open(folder)) == found[max(found)]
    return found


def check_chain(folder: str | Path) -> State:
    """What a dataset holds that `jobs.chain` made, where every version is what its number says."""
    found = state(folder)
    assert found == {number: signature(after(number)) for number in found}
    return found


def drafts(folder: str | Path) -> list[str]:
    """Temporary files."""
    return [path for path in LocalSource(folder).paths() if path.endswith(".tmp")]


def check_usable(folder: str | Path, before: State) -> None:
    """A dataset takes another edit; what nobody names goes; nothing else does."""
    with sx.edit(folder) as tx:
        tx.delete(rows=[0])
    expected = signature(list(sx.open(folder, version=max(before)))[1:])
    assert tx.version == max(before) + 1
    clean(folder, keep=len(before) + 1, grace=0)
    assert state(folder) == {**before, tx.version: expected}
    assert files(folder) == set(LocalSource(folder).paths())


def files(folder: str | Path) -> set[str]:
    """The files that a dataset should consist of: manifests, and what they name."""
    place = LocalSource(folder)
    manifests = place.paths("_shardex/")
    return {*manifests, *(file.path for path in manifests for file in files_of(read_manifest(place, _number(path))))}


def _number(path: str) -> int:
    return int(path.removeprefix("_shardex/").removesuffix(".json"))


class Models:
    """The dataset that edits begin with, and what each of them should make of it."""

    def __init__(self, room: Path) -> None:
        self._room = room
        self._new: dict[str, State] = {}
        make(str(room / "before"))
        self._old = state(room / "before")

    def begin(self, name: str, folder: Path) -> State:
        """Put it there, and give what it holds; there is none before `create`."""
        shutil.rmtree(folder, ignore_errors=True)
        if name == "create":
            return {}
        shutil.copytree(self._room / "before", folder)
        return self._old

    def new(self, name: str) -> State:
        """What it holds after the edit."""
        if name not in self._new:
            self.begin(name, self._room / name)
            EDITS[name](str(self._room / name))
            self._new[name] = state(self._room / name)
        return self._new[name]
