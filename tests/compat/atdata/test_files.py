"""Files of atdata in both directions: what it wrote is read, and webdataset reads what is written here."""

import dataclasses
import gc
import hashlib
import json
import shutil
import tarfile
import warnings
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import webdataset
from numpy.typing import NDArray

from shardex.compat import atdata
from tests.compat.atdata.sample_classes import Picture, picture

FIXTURES = Path(__file__).parents[2] / "fixtures" / "atdata"
PICTURE: Any = Picture


@atdata.packable
class Single:
    """The class of the fixture `single`: all kinds of fields."""

    image: NDArray[Any]
    label: str
    metadata: dict[str, Any]
    maybe: NDArray[Any] | None
    score: float
    n: int
    flag: bool
    tags: list[str]
    blob: bytes


@atdata.packable
class Sharded:
    """The class of the fixture `sharded`."""

    x: NDArray[Any]
    label: str
    score: float
    tags: list[str]


@dataclasses.dataclass
class Legacy(atdata.PackableSample):
    """The class of the fixture `legacy_npy`, as its version of atdata was used."""

    label: str
    score: float
    image: NDArray[Any]


KINDS: dict[str, Any] = {"single": Single, "sharded": Sharded, "legacy_npy": Legacy}


@pytest.fixture(params=sorted(KINDS))
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[atdata.Dataset[Any], list[dict[str, Any]], Path]:
    """A dataset that atdata wrote, its samples, and a copy of its folder: opening a tar writes an index beside it."""
    name = request.param
    folder = Path(shutil.copytree(FIXTURES / name, tmp_path / name))
    expected = json.loads((FIXTURES / "expected.json").read_text("utf-8"))[name]["samples"]
    return atdata.load_dataset(str(folder), KINDS[name], split="train"), expected, folder


def unfolded(value: Any) -> Any:
    """Return a value of expected.json; an array as dtype, shape and checksum."""
    if isinstance(value, dict) and "sha256_C" in value:
        return value["dtype"], tuple(value["shape"]), value["sha256_C"]
    return bytes.fromhex(value["__bytes__"]) if isinstance(value, dict) and "__bytes__" in value else value


def told(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).hexdigest()
    return value


def packed_in(folder: Path) -> list[tuple[str, bytes]]:
    """Return the names and contents of all members, as Python's own tarfile reads them."""
    found = []
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            found += [(one.name, tar.extractfile(one).read()) for one in tar]  # type: ignore[union-attr]
    return found


def test_what_atdata_wrote_is_read(written: tuple[atdata.Dataset[Any], list[dict[str, Any]], Path]) -> None:
    ds, expected, folder = written
    assert len(ds) == len(expected)
    untyped = atdata.load_dataset(str(folder), split="train")
    for samples in (list(ds), ds.select(range(len(expected))), list(untyped.as_type(ds.sample_type))):
        for sample, wanted in zip(samples, expected, strict=True):
            assert {name: told(getattr(sample, name)) for name in wanted} == {n: unfolded(v) for n, v in wanted.items()}
    assert [one.label for one in untyped] == [one["label"] for one in expected]
    keys = [name.partition(".")[0] for name, _ in packed_in(folder)]
    assert ds.get(keys[3]) == ds.select([3])[0]


@pytest.mark.usefixtures("compact_arrays")
def test_packed_bytes_are_those_of_atdata(written: tuple[atdata.Dataset[Any], list[dict[str, Any]], Path]) -> None:
    ds, _, folder = written
    if ds.sample_type is Legacy:  # its arrays are .npy; here they are compact, as of newer versions
        assert [Legacy.from_bytes(one.packed) for one in ds] == list(ds)
    else:
        assert [one.packed for one in ds] == [data for _, data in packed_in(folder)]
    untyped = atdata.load_dataset(str(folder), split="train")
    assert [one.packed for one in untyped] == [data for _, data in packed_in(folder)]


def test_packed_bytes_are_those_of_old_versions(
    written: tuple[atdata.Dataset[Any], list[dict[str, Any]], Path],
) -> None:
    ds, _, folder = written
    if ds.sample_type is Legacy:  # with its fields in another order
        stored = [msgspec.msgpack.decode(data) for _, data in packed_in(folder)]
        assert [msgspec.msgpack.decode(one.packed) for one in ds] == stored
    assert all(b"\x93NUMPY" in one.packed for one in ds)


def by_webdataset(pattern: str) -> list[dict[str, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # webdataset leaves files to the garbage collector
        found = list(webdataset.WebDataset(pattern, shardshuffle=False))
        gc.collect()
    return found


@pytest.mark.parametrize("maxcount", [None, 4])
def test_webdataset_reads_what_is_written(tmp_path: Path, maxcount: int | None) -> None:
    ds = atdata.write_samples(map(picture, range(10)), tmp_path / "data.tar", maxcount=maxcount)
    raw = by_webdataset(ds.url)
    assert [PICTURE.from_bytes(one["msgpack"]) for one in raw] == [ds.wrap(one) for one in raw] == list(ds)
    assert len({one["__key__"] for one in raw}) == 10 and ds.get(raw[7]["__key__"]) == picture(7)


def test_webdataset_reads_samples_of_its_own_writer(tmp_path: Path) -> None:
    with webdataset.ShardWriter(f"{tmp_path}/data-%06d.tar", maxcount=4, verbose=0) as out:
        for k in range(10):
            out.write(picture(k).as_wds)
    pattern = f"{tmp_path}/data-{{000000..000002}}.tar"
    assert [PICTURE.from_bytes(one["msgpack"]) for one in by_webdataset(pattern)] == list(map(picture, range(10)))
    assert list(atdata.Dataset[PICTURE](pattern)) == list(map(picture, range(10)))
