"""Golden datasets: files of both versions of the format stay readable, and the same samples give the same bytes."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.native.manifest import read_manifest
from shardex.sources import LocalSource
from shardex.store import leftovers, recover, verify

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden"
MAKE = runpy.run_path(str(GOLDEN / "make.py"))
NAMES = sorted(f"{path.parent.name}/{path.name}" for path in GOLDEN.glob("version_*/*") if path.is_dir())
VERSIONS = [
    (name, version)
    for name in NAMES
    for version in range(1, 1 + len(json.loads((GOLDEN / name / "expected.json").read_text("utf-8"))))
]


def plain(value: Any) -> Any:
    """Return the samples in the form of `expected.json`."""
    return MAKE["plain"](value)


def expected(name: str, version: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    found = json.loads((GOLDEN / name / "expected.json").read_text("utf-8"))[version - 1]
    return found["schema"], found["samples"]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_golden_files_exist_and_are_small() -> None:
    every = {f"version_{number}/{name}" for number in (1, 2) for name in MAKE["BUILDERS"]}
    assert set(NAMES) == every - {"version_1/runs"}
    assert len(VERSIONS) >= 40
    assert sum(len(data) for name in NAMES for data in files(GOLDEN / name).values()) < 400_000
    kinds = str(expected("version_2/kinds", 1)[0])
    for kind in ("value", "text", "bytes", "json", "array", "class", "sequence", "struct", "optional"):
        assert f"'kind': '{kind}'" in kinds
    assert all(len(list((GOLDEN / name / "dataset" / "data").iterdir())) >= 1 for name in NAMES)


@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_all_values_of_all_versions(name: str, version: int) -> None:
    schema, samples = expected(name, version)
    ds = sx.open(GOLDEN / name / "dataset", version=version)
    assert ds.features.to_json() == schema
    assert [plain(dict(sample)) for sample in ds] == samples
    assert [plain(dict(ds[k])) for k in range(len(ds))] == samples
    backwards = np.arange(len(samples))[::-1]
    assert [plain(dict(sample)) for sample in sx.Batch(ds.read(backwards))] == samples[::-1]


@pytest.mark.parametrize("name", NAMES)
def test_open_gives_the_newest_version(name: str) -> None:
    last = max(version for other, version in VERSIONS if other == name)
    history = sx.history(GOLDEN / name / "dataset")
    assert [version.number for version in history] == list(range(1, last + 1))
    assert [plain(dict(sample)) for sample in sx.open(GOLDEN / name / "dataset")] == expected(name, last)[1]


@pytest.mark.parametrize("name", ["version_1/keyed", "version_2/keyed"])
def test_samples_are_found_by_key(name: str) -> None:
    for version in (1, 2):
        ds = sx.open(GOLDEN / name / "dataset", version=version)
        for sample in expected(name, version)[1]:
            assert dict(ds.get(sample["id"])) == sample


@pytest.mark.parametrize("name", [name for name in NAMES if name.partition("/")[2] not in ("kinds", "media")])
def test_reader_in_the_format_specification_agrees(name: str) -> None:
    """The reader in docs/format.md does not use shardex; it returns lists where shardex returns arrays."""
    page = (Path(__file__).parents[2] / "docs" / "format.md").read_text("utf-8")
    reader = re.search(r"```python\n(import json.*?)```", page, re.DOTALL)
    assert reader is not None
    exec(reader[1], names := dict[str, Any]())
    folder = str(GOLDEN / name / "dataset")
    shown = [{n: v.tolist() if isinstance(v, np.ndarray) else v for n, v in s.items()} for s in sx.open(folder)]
    assert names["read_dataset"](folder) == shown


@pytest.mark.parametrize("name", NAMES)
def test_verify_finds_no_problems(name: str, tmp_path: Path) -> None:
    folder = GOLDEN / name / "dataset"
    assert verify(folder) == [] == leftovers(folder)
    done = recover(folder, tmp_path / "saved")
    assert (done.lost, done.notes) == ([], [])
    assert [plain(dict(sample)) for sample in sx.open(done.path)] == expected(name, done.version or 0)[1]


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("version_2")])
def test_the_same_samples_give_the_same_bytes(name: str, tmp_path: Path) -> None:
    """Data files and manifests are equal; `make.py` fixes the time and the random numbers in manifests."""
    MAKE["make"](name.partition("/")[2], tmp_path / name)
    made, golden = files(tmp_path / name), files(GOLDEN / name)
    assert made.keys() == golden.keys()
    assert [path for path in golden if made[path] != golden[path]] == []


FINGERPRINTS = {
    "compacted 1": "0a90c084c8042474",
    "compacted 2": "771ac6526aae6490",
    "compacted 3": "6a388fc44f7b775d",
    "compacted 4": "0424b02290fbb61b",
    "compacted 5": "0b1877a7cd44453b",
    "compacted 6": "2b63e78e42b3ddc0",
    "compacted 7": "6a388fc44f7b775d",
    "compacted 8": "6fd2755af5843c2e",
    "compacted 9": "d103e989c3eadb9c",
    "edited 1": "0a90c084c8042474",
    "edited 2": "771ac6526aae6490",
    "edited 3": "6a388fc44f7b775d",
    "edited 4": "0424b02290fbb61b",
    "edited 5": "0b1877a7cd44453b",
    "edited 6": "2b63e78e42b3ddc0",
    "edited 7": "6a388fc44f7b775d",
    "empty 1": "763a951affe06735",
    "empty 2": "b0cc8b61ce783c6a",
    "keyed 1": "3f3ece5c14c77e96",
    "keyed 2": "1ccc2be91fa45168",
    "kinds 1": "a082a81f3bda99af",
    "media 1": "cc01942b72dc66a2",
    "media 2": "8c6eec88b1243ed3",
}


def test_fingerprints_of_version_1_stay() -> None:
    """Saved states of loaders and indexes name them."""
    for name, fingerprint in FINGERPRINTS.items():
        folder, version = name.split()
        ds = sx.open(GOLDEN / "version_1" / folder / "dataset", version=int(version))
        assert ds.rows.fingerprint == fingerprint


def test_changes_of_a_dataset_of_version_1(tmp_path: Path) -> None:
    """New files are of version 2; the manifest names both kinds, and older versions stay readable."""
    folder = tmp_path / "d"
    shutil.copytree(GOLDEN / "version_1" / "keyed" / "dataset", folder)
    before = [dict(sample) for sample in sx.open(folder)]
    new = [{**sample, "id": f"{sample['id']} again"} for sample in before]
    sx.write(folder, new, mode="append")
    assert [dict(sample) for sample in sx.open(folder)] == before + new
    manifest = read_manifest(LocalSource(folder), 3)
    assert manifest.shardex == 2
    assert [fragment.groups[0].version for fragment in manifest.fragments] == [1] * (len(manifest.fragments) - 1) + [2]
    with sx.edit(folder) as tx:
        tx.delete(before[0]["id"])
    assert [dict(sample) for sample in sx.open(folder)] == (before + new)[1:]
    assert [dict(sample) for sample in sx.open(folder, version=2)] == before
    assert verify(folder) == [] and dict(sx.open(folder).get(new[0]["id"])) == new[0]


def test_runs_of_the_golden_dataset() -> None:
    place = LocalSource(GOLDEN / "version_2" / "runs" / "dataset")
    manifests = [read_manifest(place, version) for version in range(1, 14)]
    counts = [[run.fragments for run in manifest.fragments.runs] for manifest in manifests]
    assert counts[2:5] == [[], [3], [3]] and counts[7] == [6] and len(counts[-1]) >= 1
    assert all(run.tables for run in manifests[-1].fragments.runs)
    assert manifests[-1].fragments.runs[0].groups == [{"id": "id", "text": "s"}]


def test_fingerprints_of_version_2_stay() -> None:
    found = {version: sx.open(GOLDEN / "version_2" / "runs" / "dataset", version=version) for version in (3, 9, 13)}
    assert {version: ds.fingerprint for version, ds in found.items()} == FINGERPRINTS_2


FINGERPRINTS_2 = {3: "b4359158f69406c1", 9: "0822104c8108ff38", 13: "ce36ce2981627edd"}
