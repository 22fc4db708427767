"""The content of a dataset in a form that can be compared: a signature of every version."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import shardex as sx
from shardex.native import versions_in
from shardex.native.manifest import read_manifest
from shardex.native.version_numbers import is_version_name
from shardex.sources import LocalSource
from shardex.store import clean, history
from tests.faults.jobs import EDITS, after, make

State = dict[int, str]


def signature(samples: Iterable[Mapping[str, Any]]) -> str:
    """Return a hash of samples: their values, types and order."""
    made = hashlib.sha256()
    for sample in samples:
        made.update(repr([(name, _plain(sample[name])) for name in sample]).encode())
    return made.hexdigest()


def _plain(value: Any) -> Any:
    return (value.dtype.str, value.tolist()) if isinstance(value, np.ndarray) else (type(value).__name__, value)


def state(folder: str | Path) -> State:
    """Return every version with its signature; empty without a dataset. Checks that two ways to read agree."""
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
    """Return the state of a dataset made by `jobs.chain`; every version must have the content of its number."""
    found = state(folder)
    assert found == {number: signature(after(number)) for number in found}
    return found


def drafts(folder: str | Path) -> list[str]:
    """Temporary files."""
    return [path for path in LocalSource(folder).paths() if path.endswith(".tmp")]


def check_usable(folder: str | Path, before: State) -> None:
    """Check that another edit works, and that `clean` removes exactly the unused files."""
    with sx.edit(folder) as tx:
        tx.delete(rows=[0])
    expected = signature(list(sx.open(folder, version=max(before)))[1:])
    assert tx.version == max(before) + 1
    clean(folder, keep=len(before) + 1, grace=0)
    assert state(folder) == {**before, tx.version: expected}
    assert files(folder) == set(LocalSource(folder).paths())


def files(folder: str | Path) -> set[str]:
    """Return the files that belong to a dataset: manifests, those of removed versions, and the files that they name."""
    place = LocalSource(folder)
    names = {path for path in place.paths("_shardex/") if is_version_name(path)}
    return names | {file.path for number in versions_in(place) for file in read_manifest(place, number).files()}


class Models:
    """The dataset that edits begin with, and its expected content after each edit."""

    def __init__(self, room: Path) -> None:
        self._room = room
        self._new: dict[str, State] = {}
        make(str(room / "before"))
        self._old = state(room / "before")

    def begin(self, name: str, folder: Path) -> State:
        """Copy the dataset to a folder and return its state; empty for `create`."""
        shutil.rmtree(folder, ignore_errors=True)
        if name == "create":
            return {}
        shutil.copytree(self._room / "before", folder)
        return self._old

    def new(self, name: str) -> State:
        """Return the state after the edit."""
        if name not in self._new:
            self.begin(name, self._room / name)
            EDITS[name](str(self._room / name))
            self._new[name] = state(self._room / name)
        return self._new[name]
