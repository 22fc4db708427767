"""Golden datasets: their files stay readable, and the same samples give the same bytes."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.native.manifest import read_manifest
from shardex.sources import LocalSource
from shardex.store import leftovers, recover, verify

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden" / "version_2"
MAKE = runpy.run_path(str(GOLDEN.parent / "make.py"))
NAMES = sorted(path.name for path in GOLDEN.iterdir())
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
    assert sorted(MAKE["BUILDERS"]) == NAMES
    assert len(VERSIONS) >= 36
    assert sum(len(data) for name in NAMES for data in files(GOLDEN / name).values()) < 400_000
    kinds = str(expected("kinds", 1)[0])
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
    history = sx.store.history(GOLDEN / name / "dataset")
    assert [version.number for version in history] == list(range(1, last + 1))
    assert [plain(dict(sample)) for sample in sx.open(GOLDEN / name / "dataset")] == expected(name, last)[1]


def test_samples_are_found_by_key() -> None:
    for version in (1, 2):
        ds = sx.open(GOLDEN / "keyed" / "dataset", version=version)
        for sample in expected("keyed", version)[1]:
            assert dict(ds.get(sample["id"])) == sample


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("kinds", "media")])
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


@pytest.mark.parametrize("name", NAMES)
def test_the_same_samples_give_the_same_bytes(name: str, tmp_path: Path) -> None:
    """Data files and manifests are equal; `make.py` fixes the time and the random numbers in manifests."""
    MAKE["make"](name, tmp_path / name)
    made, golden = files(tmp_path / name), files(GOLDEN / name)
    assert made.keys() == golden.keys()
    assert [path for path in golden if made[path] != golden[path]] == []


def test_runs_of_the_golden_dataset() -> None:
    place = LocalSource(GOLDEN / "runs" / "dataset")
    manifests = [read_manifest(place, version) for version in range(1, 14)]
    counts = [[run.fragments for run in manifest.fragments.runs] for manifest in manifests]
    assert counts[2:5] == [[], [3], [3]] and counts[7] == [6] and len(counts[-1]) >= 1
    assert all(run.tables for run in manifests[-1].fragments.runs)
    assert manifests[-1].fragments.runs[0].groups == [{"id": "id", "text": "s"}]


def test_fingerprints_stay() -> None:
    """Saved states of loaders and indexes name them."""
    found = {version: sx.open(GOLDEN / "runs" / "dataset", version=version) for version in (3, 9, 13)}
    assert {version: ds.fingerprint for version, ds in found.items()} == FINGERPRINTS


FINGERPRINTS = {3: "b4359158f69406c1", 9: "0822104c8108ff38", 13: "ce36ce2981627edd"}
