"""Manifests say what is in each shard, as strict JSON and Parquet, and queries find samples in them."""

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from shardex.compat.atdata import write_samples
from shardex.compat.atdata.manifest import (
    F,
    ManifestBuilder,
    ManifestField,
    ManifestWriter,
    NumericAggregate,
    QueryExecutor,
    SampleLocation,
    ShardManifest,
    create_aggregate,
    query_fields,
    resolve_manifest_fields,
)
from shardex.errors import ArgumentError, FieldError, FormatError, NotFoundError, QueryError, SchemaError
from tests.compat.atdata.samples_for_manifests import Shot, shots


def strict_json(path: Path) -> dict[str, Any]:
    def refuse(text: str) -> None:
        raise AssertionError(text)

    found: dict[str, Any] = json.loads(path.read_text("utf-8"), parse_constant=refuse)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_samples(shots(10), tmp_path / "train.tar", maxcount=4, manifest=True)
    return tmp_path


def test_every_shard_has_its_own_manifest(folder: Path) -> None:
    """B3.1: the last manifest was empty, the shard ids were shifted, minima were Infinity."""
    for number, rows in enumerate((range(4), range(4, 8), range(8, 10))):
        base = folder / f"train-{number:06d}"
        header = strict_json(base.with_suffix(".manifest.json"))
        assert header["manifest_version"] == header["schema_version"] == "1.0.0"
        assert (header["shard_id"], header["schema_type"], header["num_samples"]) == (base.name, "Shot", len(rows))
        assert header["aggregates"].keys() == {"label", "n", "score", "tags", "flag"}
        assert header["aggregates"]["n"] == {
            "type": "numeric",
            "min": rows[0],
            "max": rows[-1],
            "mean": sum(rows) / len(rows),
            "count": len(rows),
        }
        assert header["aggregates"]["label"]["value_counts"] == {"a": len(rows) // 2, "b": len(rows) // 2}
        assert header["aggregates"]["score"]["count"] == len(rows) - (number == 0)
        assert header["aggregates"]["tags"]["all_values"] == sorted({"é", *(f"t{k}" for k in rows)})
        table = pq.read_table(base.with_suffix(".manifest.parquet"))
        assert table.column_names == ["__key__", "__offset__", "__size__", "label", "n", "score", "tags", "flag"]
        assert table["n"].to_pylist() == list(rows)
        assert header["size_bytes"] == sum(table["__size__"].to_pylist())


def test_offsets_are_those_of_the_packed_bytes(folder: Path) -> None:
    for path in sorted(folder.glob("*.tar")):
        data = path.read_bytes()
        for row in pq.read_table(path.with_suffix(".manifest.parquet")).to_pylist():
            one = Shot.from_bytes(data[row["__offset__"] : row["__offset__"] + row["__size__"]])
            assert (one.n, one.tags, one.score) == (row["n"], row["tags"], row["score"])


Q = query_fields(Shot)
QUERIES: list[tuple[Any, list[int]]] = [
    (Q.n >= 0, list(range(10))),
    (Q.n > 7, [8, 9]),
    ((Q.n < 2) | (Q.n == 5), [0, 1, 5]),
    (Q.label.isin(("a",)) & (Q.n <= 4), [0, 2, 4]),
    (~Q.label.isin({"a"}) & (Q.n != 1), [3, 5, 7, 9]),
    (Q.score.between(1, 2), [2, 4]),
    (F.flag == True, [0, 2, 4, 6, 8]),  # noqa: E712
    (lambda df: df["tags"].map(lambda tags: "t6" in tags), [6]),
    (lambda df: (df["score"] > 3).tolist(), [7, 8, 9]),
]


@pytest.mark.parametrize(("where", "expected"), QUERIES, ids=range(len(QUERIES)))
def test_queries(folder: Path, where: Any, expected: list[int]) -> None:
    shards = [str(path) for path in sorted(folder.glob("*.tar"))]
    for executor in (QueryExecutor.from_directory(folder), QueryExecutor.from_shard_urls(shards)):
        found = executor.query(where=where)
        assert [int(one.key[:9]) for one in found] == expected
        assert [one.shard for one in found] == [f"train-{k // 4:06d}" for k in expected]
    assert isinstance(SampleLocation("a", "b", 3), SampleLocation)


@pytest.mark.parametrize(
    ("where", "shards"),
    [
        (Q.n > 7, [2]),
        (Q.n >= 7, [1, 2]),
        (Q.n < 4, [0]),
        ((Q.n <= 4) & (Q.label == "a"), [0, 1]),
        ((Q.n == 0) | (Q.n == 9), [0, 2]),
        (Q.n.isin([1, 2]), [0]),
        (Q.label == "c", []),
        (Q.label.isin(["c", "a"]), [0, 1, 2]),
        (~(Q.n > 3), [0, 1, 2]),
        (Q.n != 3, [0, 1, 2]),
        (Q.flag == 1, [0, 1, 2]),
        (F.unknown == 3, [0, 1, 2]),
    ],
)
def test_shards_without_matches_are_not_read(folder: Path, where: Any, shards: list[int]) -> None:
    headers = [strict_json(folder / f"train-{number:06d}.manifest.json") for number in range(3)]
    assert [number for number, one in enumerate(headers) if where.may_match(one["aggregates"])] == shards
    executor = QueryExecutor.from_directory(folder)
    for number in set(range(3)) - set(shards):
        (folder / f"train-{number:06d}.manifest.parquet").unlink()
    if "unknown" not in repr(where):
        assert {one.shard for one in executor.query(where)} <= {f"train-{number:06d}" for number in shards}


@pytest.mark.parametrize(("field", "value"), [("n", "3"), ("n", [1]), ("tags", "abc"), ("tags", 3), ("label", set())])
def test_values_that_manifests_cannot_hold(tmp_path: Path, field: str, value: Any) -> None:
    sample = shots(1)[0]
    setattr(sample, field, value)
    with pytest.raises(SchemaError, match=f"field {field} of"):
        write_samples([sample], tmp_path / "a.tar", manifest=True)
    assert list(tmp_path.iterdir()) == []


def test_manifests_by_url(folder: Path) -> None:
    assert len(QueryExecutor.from_shard_urls([f"file://{folder}/train-000002.tar"]).query(Q.n > 0)) == 2


def test_shards_without_manifest_are_left_out(folder: Path) -> None:
    (folder / "train-000000.manifest.json").unlink()
    shards = [str(path) for path in sorted(folder.glob("*.tar"))]
    assert len(QueryExecutor.from_shard_urls(shards).query(Q.n >= 0)) == 6
    with pytest.raises(NotFoundError):
        QueryExecutor.from_directory(folder / "nowhere")


def test_wrong_queries(folder: Path) -> None:
    executor = QueryExecutor.from_directory(folder)
    with pytest.raises(FieldError, match=r"label, n, .*'lable': did you mean 'label'"):
        executor.query(F.lable == "a")
    with pytest.raises(AttributeError, match="did you mean 'label'"):
        _ = Q.lable
    with pytest.raises(AttributeError, match="image"):
        _ = Q.image
    with pytest.raises(QueryError, match="a boolean for each of 4 rows"):
        executor.query(lambda df: True)
    with pytest.raises(ArgumentError, match="& and"):
        executor.query((Q.n > 1) and (Q.n < 5))
    with pytest.raises(ArgumentError):
        executor.query(1 < Q.n < 5)


def test_json_only_has_no_rows(folder: Path) -> None:
    manifest = ShardManifest.from_json_only(folder / "train-000000.manifest.json")
    assert manifest.num_samples == 4
    assert manifest.samples.empty
    with pytest.raises(QueryError, match="without rows"):
        QueryExecutor([manifest]).query(Q.n > 0)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"shard_id": 1}'])
def test_damaged_manifests(folder: Path, text: str) -> None:
    path = folder / "train-000000.manifest.json"
    table = folder / "train-000000.manifest.parquet"
    before = path.read_text()
    path.write_text(text)
    with pytest.raises(FormatError, match="train-000000"):
        ShardManifest.from_json_only(path)
    path.write_text(before)
    table.write_bytes(b"PAR1")
    with pytest.raises(FormatError, match=r"train-000000\.manifest\.parquet"):
        ShardManifest.from_files(path, table)


def test_builder_and_writer(tmp_path: Path) -> None:
    builder = ManifestBuilder(Shot, "run.1", "2.0.0", "job", ["parent"], "p1")
    for number, sample in enumerate(shots(3)):
        builder.add_sample(key=f"k{number}", offset=512 * number, size=10, sample=sample)
    manifest = builder.build()
    paths = ManifestWriter(tmp_path / "run.1").write(manifest)
    assert paths == (tmp_path / "run.1.manifest.json", tmp_path / "run.1.manifest.parquet")
    again = ShardManifest.from_files(*paths)
    pd.testing.assert_frame_equal(again.samples, manifest.samples)
    assert again.header_dict() == manifest.header_dict()
    assert again.provenance == {"source_job_id": "job", "parent_shards": ["parent"], "pipeline_version": "p1"}
    assert again.created_at.tzinfo is not None


def test_samples_without_values(tmp_path: Path) -> None:
    builder = ManifestBuilder(Shot, "empty")
    for samples in (0, 2):
        for _ in range(samples):
            sample = Shot(np.zeros(1), None, None, float("nan"), None, None)  # type: ignore[arg-type]
            builder.add_sample(key="k", offset=0, size=1, sample=sample)
        again = ShardManifest.from_files(*ManifestWriter(tmp_path / "empty").write(builder.build()))
        assert again.num_samples == len(again.samples) == samples
        assert strict_json(tmp_path / "empty.manifest.json")["aggregates"]["n"]["min"] is None


def test_which_fields_are_in_manifests() -> None:
    @dataclass
    class Sample:
        a: str
        b: bool | None
        c: NDArray[Any]
        d: NDArray[Any] | None
        e: bytes
        f: list[int] | None
        g: dict[str, int]
        h: int | str
        i: Annotated[dict[str, int], ManifestField("categorical")]
        j: "float"

    kinds = {name: one.aggregate for name, one in resolve_manifest_fields(Sample).items()}
    assert kinds == {"a": "categorical", "b": "categorical", "f": "set", "i": "categorical", "j": "numeric"}
    with pytest.raises(TypeError, match="packable"):
        resolve_manifest_fields(int)
    with pytest.raises(ValueError, match="aggregate"):
        ManifestField("numbers")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="aggregate"):
        create_aggregate("numbers")


def test_numbers_are_exact_and_finite() -> None:
    aggregate = NumericAggregate()
    for value in (2**53 + 1, float("nan"), 1.0):
        aggregate.add(value)
    assert aggregate.to_dict() == {"type": "numeric", "min": 1, "max": 2**53 + 1, "mean": (2**53 + 1) / 2, "count": 2}
    aggregate.add(float("inf"))
    assert aggregate.to_dict()["max"] is None


def test_conditions_are_pickled() -> None:
    frame = pd.DataFrame({"n": [1, 2, 3]})
    where = pickle.loads(pickle.dumps((F.n > 1) & ~(F.n == 3)))
    assert where(frame).tolist() == [False, True, False]
    assert where.compile()(frame).tolist() == [False, True, False]
    assert repr(Q) == "ShotFields(label, n, score, tags, flag)"
    assert repr(F.n) == "FieldProxy('n')"
