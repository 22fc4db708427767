"""Datasets: opening, views, batches and other tools. The rows protocol is tested in test_conformance.py."""

from __future__ import annotations

import math
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardex as sx
from shardex.dataset import ListRows
from shardex.errors import (
    ArgumentError,
    FieldError,
    FormatError,
    MissingExtraError,
    NotFoundError,
    RowError,
    SchemaError,
    StaleIndexError,
    UnknownFormatError,
)
from shardex.kernel import Columns

DATA = [{"x": k, "name": f"n{k}"} for k in range(20)]


def test_open_accepts_two_method_rows() -> None:
    class Squares:
        def __len__(self) -> int:
            return 1000

        def read(self, rows: Any, fields: Any = None) -> Columns:
            return Columns({"square": rows * rows})

    ds = sx.open(Squares())
    assert ds[-1] == {"square": 999**2} and ds.features["square"] == sx.Value("int64")
    assert sorted(np.concatenate([b.square for b in ds.shuffled(64)]).tolist()) == [k * k for k in range(1000)]


def test_views_copy_nothing_and_nest() -> None:
    ds = sx.open(DATA)
    view = ds.skip(2).take(10)[::2].select("x")
    assert [s.x for s in view] == list(range(20))[2:12:2]
    assert ds.take(0).fields == ds.fields and len(ds.skip(99)) == 0
    assert sorted(s.x for s in ds.shuffle(seed=1).shuffle(seed=2)[3:].skip(1)) != []


@given(st.integers(0, 40), st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_split_covers_everything_once(length: int, shares: list[float]) -> None:
    total = sum(shares)
    shares = [share / max(total, 1) for share in shares]
    ds = sx.open(ListRows([{"x": k} for k in range(length)]))
    parts = ds.split(*shares)
    assert [s.x for part in parts for s in part] == list(range(length))


def test_split_of_more_than_everything_raises() -> None:
    with pytest.raises(ArgumentError, match="add up to at most 1"):
        sx.open(DATA).split(0.8, 0.3)


def test_shuffled_is_the_same_for_the_same_seed_and_epoch() -> None:
    ds = sx.open(DATA)

    def order(seed: int, epoch: int = 0) -> list[int]:
        return [x for batch in ds.shuffled(7, seed=seed, epoch=epoch) for x in batch.x]

    assert order(seed=1) == order(seed=1) != order(seed=2)
    assert order(seed=1, epoch=1) != order(seed=1)
    assert [len(b) for b in ds.shuffled(7, drop_last=True)] == [7, 7]
    assert [len(b) for b in ds.ordered(7)] == [7, 7, 6]


def test_batches_are_fresh_and_writable(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [{"x": np.zeros(4, np.float32)}] * 10)
    for batch in ds.ordered(4):
        batch.x += 1
    assert ds.read(range(10))["x"].sum() == 0
    assert not ds[0].x.flags.writeable, "a sample is a view of the file"


def test_concat_of_different_class_labels_raises(tmp_path: Path) -> None:
    cats = sx.write(tmp_path / "a", [{"y": 0}], {"y": sx.ClassLabel(("cat", "dog"))})
    dogs = sx.write(tmp_path / "b", [{"y": 0}], {"y": sx.ClassLabel(("dog", "cat"))})
    with pytest.raises(SchemaError, match="at dataset 1, field y"):
        sx.concat(cats, dogs)


def test_concat_and_join_of_unfit_datasets_raise() -> None:
    a, b = sx.open([{"x": 1}]), sx.open([{"y": 1}])
    with pytest.raises(SchemaError, match="expected the fields of the first dataset \\(x\\), got y - at dataset 1"):
        sx.concat(a, b)
    with pytest.raises(SchemaError, match="'x' twice - at dataset 1"):
        sx.join(a, a)
    with pytest.raises(ArgumentError, match="expected 1 samples as in the first dataset, got 2"):
        sx.join(a, sx.open([{"y": 1}, {"y": 2}]))


def test_repr_shows_fields_format_and_path(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", DATA, shard_rows=10)
    assert repr(ds) == f"Dataset(20 samples: x int64, name text - arrow, 2 shards, {tmp_path / 'd'})"


def test_select_of_unknown_fields_raises() -> None:
    ds = sx.open(DATA)
    with pytest.raises(FieldError, match="expected one of the fields x, name, got 'nme'"):
        ds.select("nme")
    with pytest.raises(ArgumentError, match=r"choose fields with select\(\['x'\]\)"):
        ds[["x"]]
    with pytest.raises(FieldError):
        ds.select("x").read([0], ["name"])
    with pytest.raises(ArgumentError, match="at least 1 for batch_size"):
        ds.ordered(0)


def test_arguments_of_wrong_types_raise() -> None:
    ds: Any = sx.open(DATA)
    for method, argument in (("take", 2.5), ("shuffled", 2.5), ("split", math.nan), ("read", [1.7])):
        with pytest.raises(ArgumentError, match="expected"):
            getattr(ds, method)(argument)
    with pytest.raises(ArgumentError, match="expected datasets as arguments, got int - at argument 1"):
        sx.concat([ds, 3])  # type: ignore[list-item]
    with pytest.raises(SchemaError, match="expected a field, a sample's number or a slice"):
        next(ds.ordered(2))[1.5]
    with pytest.raises(NotFoundError, match="expected at least one file"):
        sx.open([])
    with pytest.raises(ArgumentError, match="expected no format"):
        sx.open(DATA, format="tar")


def test_read_takes_the_positions_that_getitem_takes() -> None:
    ds = sx.open(DATA)
    assert ds.read(np.arange(20) > 17)["x"].tolist() == [18, 19]
    assert ds.read([-1, 0])["x"].tolist() == ds.read(np.array([-1, 0]))["x"].tolist() == [19, 0]
    assert ds.read(slice(3))["x"].tolist() == [0, 1, 2]


def test_repr_of_unreadable_data_does_not_raise() -> None:
    samples: list[dict[str, Any]] = [{"x": 1}, {"x": "a"}]
    assert "unknown fields" in repr(sx.open(samples))


def test_iteration_over_large_samples_reads_few_rows_at_once() -> None:
    """The size of nested lists and dicts counts, not only that of their first value."""
    most = 0

    class Large:
        def __len__(self) -> int:
            return 400

        def read(self, rows: Any, fields: Any = None) -> Columns:
            nonlocal most
            most = max(most, len(rows))
            return Columns({"x": [{"deep": [1.5] * 10_000} if row else {} for row in rows.tolist()]}, len(rows))

    assert sum(len(batch) for batch in sx.open(Large()).ordered(4)) == 400
    assert most <= 16


def test_to_pandas_and_arrow(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", DATA)
    assert ds.to_pandas()["x"].tolist() == list(range(20))
    assert ds[5:7].to_arrow(["name"]).to_pydict() == {"name": ["n5", "n6"]}


def test_a_missing_extra_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"to_pandas needs pandas.*pip install 'shardex\[pandas\]'"):
        sx.open(DATA).to_pandas()


# -- opening ---------------------------------------------------------------------------------------------------


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for part in range(3):
        (tmp_path / f"part{part}.jsonl").write_text("".join(f'{{"n": {part * 10 + k}}}\n' for k in range(10)))
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "count"),
    [("", 30), ("part1.jsonl", 10), ("part*.jsonl", 30), ("part{0..1}.jsonl", 20), ("part{0,2}.jsonl", 20)],
)
def test_open_takes_folders_files_globs_and_braces(corpus: Path, pattern: str, count: int) -> None:
    assert len(sx.open(corpus / pattern if pattern else corpus)) == count


def test_open_takes_a_list_in_its_order(corpus: Path) -> None:
    some: list[str | Path] = [corpus / "part2.jsonl", str(corpus / "part0.jsonl")]
    ds = sx.open(some)
    assert [ds[0].n, ds[10].n] == [20, 0]


def test_open_of_a_missing_path_raises(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file or folder"):
        sx.open(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        sx.open(str(tmp_path / "*.tar"))


def test_unknown_formats_are_described_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_bytes(b"hello world")
    (tmp_path / "b.xyz").write_bytes(b"")
    seen = r"got 2 files \(2 \.xyz\), a\.xyz beginning with b'hello world'; if they are lines of text"
    with pytest.raises(UnknownFormatError, match=seen):
        sx.open(tmp_path)
    with pytest.raises(UnknownFormatError, match="expected a format out of arrow, bins"):
        sx.open(tmp_path, format="zip")
    with pytest.raises(ArgumentError, match=r"expected options of the format jsonl .*, got 'dtype'"):
        sx.open(tmp_path, format="jsonl", dtype="u2")
    with pytest.raises(ArgumentError, match="expected bool for the option rebuild of the format jsonl, got 'yes'"):
        sx.open(tmp_path, format="jsonl", rebuild="yes")


def test_two_formats_in_one_folder_raise(corpus: Path) -> None:
    sx.write(corpus / "table", [{"x": 1}], format="parquet")
    with pytest.raises(UnknownFormatError, match=r"got 4 files \(3 \.jsonl, 1 \.parquet\); choose "):
        sx.open(corpus)
    assert len(sx.open(corpus, format="jsonl")) == 30


def test_compressed_files_are_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(b"\x1f\x8b" + bytes(100))
    with pytest.raises(FormatError, match=r"a\.jsonl\.gz: expected gzip data, got damaged bytes at about byte"):
        sx.open(tmp_path)


def test_opening_data_files_of_a_native_dataset_raises(tmp_path: Path) -> None:
    """They would include samples that an overwrite has replaced."""
    sx.write(tmp_path / "d", DATA)
    for what in (tmp_path, tmp_path / "d" / "data" / "*.arrow"):
        with pytest.raises(FormatError, match=r"got one of the dataset .*d; open that"):
            sx.open(what)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user may read; those of pytest are closed to others."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_permission_denied_raises(public: Path) -> None:
    """As another user, because root may read everything."""
    sx.write(public / "d", DATA)
    data = next((public / "d" / "data").iterdir())
    data.chmod(0)
    code = (
        "import os, sys, shardex as sx\n"
        "sx.open(sys.argv[2])[0]  # imports what the other user may not be allowed to read\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "try: sx.open(sys.argv[1])[0]\n"
        "except sx.ShardexError as e: print(type(e).__name__, e)\n"
    )
    sx.write(public / "readable", DATA)
    command = [sys.executable, "-c", code, str(public / "d"), str(public / "readable")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("AccessDeniedError [Errno 13] cannot map: Permission denied"), done
    assert data.name in done.stdout


def test_unpickling_after_the_data_changed_raises(corpus: Path) -> None:
    data = pickle.dumps(sx.open(corpus))
    (corpus / "part3.jsonl").write_text('{"n": 99}\n')
    with pytest.raises(StaleIndexError, match="expected the data that was opened"):
        pickle.loads(data)


def test_a_pickled_native_dataset_keeps_its_version(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", DATA)
    data = pickle.dumps(ds)
    sx.write(tmp_path / "d", DATA, mode="append")
    assert len(sx.open(tmp_path / "d")) == 40
    assert list(pickle.loads(data)) == list(ds)


# -- torch -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_torch_dataloader_reads_whole_batches(tmp_path: Path, workers: int) -> None:
    torch = pytest.importorskip("torch")
    ds = sx.write(tmp_path / "d", [{"x": np.full(3, k, np.float32), "n": k} for k in range(32)])
    loader = torch.utils.data.DataLoader(ds, batch_size=8, shuffle=True, num_workers=workers)
    batches = list(loader)
    assert [tuple(b["x"].shape) for b in batches] == [(8, 3)] * 4
    assert sorted(int(n) for b in batches for n in b["n"]) == list(range(32))
    whole = torch.utils.data.DataLoader(ds, batch_size=8, collate_fn=lambda batch: batch)
    assert [type(b).__name__ for b in whole] == ["Batch"] * 4


def test_sql_over_a_join_of_empty_datasets() -> None:
    both = sx.join(sx.open([{"x": 1}])[:0], sx.open([{"y": 2}])[:0])
    assert both.sql("SELECT x, y FROM ds").num_rows == 0


@pytest.mark.parametrize("native", [False, True])
def test_sample_counts_from_the_end_and_refuses_positions_out_of_range(tmp_path: Path, native: bool) -> None:
    samples = [{"x": k} for k in range(3)]
    ds = sx.write(tmp_path / "d", samples) if native else sx.open(samples)
    for view, last in ((ds, 2), (ds[::-1], 0), (sx.concat(ds, ds), 2)):
        assert view.sample(-1) == {"x": last}
        for position in (len(view), -len(view) - 1):
            with pytest.raises(RowError):
                view.sample(position)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (slice("a", "b"), "expected a slice of row numbers, got 'a':'b':"),
        (slice(1.5, None), "expected a slice of row numbers, got 1.5::"),
        (slice(None, None, 0), "got ::0: slice step cannot be zero"),
    ],
)
def test_wrong_slices_raise(where: slice, message: str) -> None:
    ds = sx.open([{"x": 1}, {"x": 2}])
    with pytest.raises(ArgumentError, match=message):
        ds[where]
    with pytest.raises(ArgumentError, match=message):
        ds.read(where)


def test_to_pandas_keeps_large_integers_with_missing_values() -> None:
    rows = [{"x": 2**62 + 1, "u": 2**64 - 1, "small": 1}, {"x": None, "u": None, "small": None}]
    frame = sx.open(rows).to_pandas()
    assert [str(kind) for kind in frame.dtypes] == ["Int64", "UInt64", "float64"]
    assert sx.open(frame)[0] == {"x": 2**62 + 1, "u": 2**64 - 1, "small": 1.0}
    assert list(frame.columns) == ["x", "u", "small"] and sx.open(frame)[1].x is None


def test_get_has_no_default(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [{"k": "a"}], key="k")
    with pytest.raises(ArgumentError, match="got 'b' and a default: a key that is not there raises KeyError"):
        ds.get("b", None)
