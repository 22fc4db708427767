"""`FormatSuite`: a format writes and reads samples as all formats do."""

from __future__ import annotations

import inspect
import os
import pickle
import shutil
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shardex.dataset import Dataset, create, write
from shardex.dataset import open as open_dataset
from shardex.errors import AlreadyExistsError, ArgumentError, ClosedError, NotFoundError, SchemaError, ShardexError
from shardex.files import find
from shardex.formats import Signature, format_named, recognise, signature_of
from shardex.samples import DictSample
from shardex.sources import open_source

_LARGEST_PICKLE = 64 << 10


@dataclass(frozen=True)
class FormatCase:
    """A format to test, and samples that it can hold: at least four."""

    format: str
    samples: Sequence[Mapping[str, Any]]
    schema: Any = None
    write: Mapping[str, Any] = field(default_factory=dict)
    """Options of `write`."""
    open: Mapping[str, Any] = field(default_factory=dict)
    """Options of `open`."""
    expected: Sequence[Mapping[str, Any]] | None = None
    """The samples as they are read, if the format gives them other fields, such as names."""

    def stored(self, path: object, samples: Sequence[Any] | None = None, **options: Any) -> Any:
        """Write samples, by default all of them, and return the path."""
        some = self.samples if samples is None else samples
        write(str(path), some, self.schema, format=self.format, progress=False, **{**self.write, **options})
        return path

    def opened(self, path: object, **options: Any) -> Dataset:
        """Open a dataset, with media as their bytes."""
        return open_dataset(str(path), **{**self.open, **options}).decode(False)

    def read(self, path: object, **options: Any) -> list[DictSample]:
        """Return all samples of a dataset, read together; those that are read one by one must be equal."""
        ds = self.opened(path, **options)
        samples = list(ds)
        assert [ds[k] for k in range(len(ds))] == samples
        return samples

    @property
    def values(self) -> list[DictSample]:
        """The samples as they are read."""
        return list(map(DictSample, self.samples if self.expected is None else self.expected))


class FormatSuite:
    """Tests that a format writes and reads samples as all formats do. Override the fixture `case`.

    `RowsSuite` tests the rows of a format in more detail: ``Case(case.opened(path).rows, case.expected)``.

    >>> class TestMine(FormatSuite):
    ...     @pytest.fixture
    ...     def case(self):
    ...         return FormatCase("jsonl", [{"x": k} for k in range(10)], {"x": int})
    """

    @pytest.fixture
    def case(self) -> FormatCase:
        """The format under test."""
        raise NotImplementedError("expected a fixture `case` that returns a FormatCase, got none")

    def test_written_samples_are_read(self, case: FormatCase, tmp_path: Path) -> None:
        assert case.read(case.stored(tmp_path / "d"), format=case.format) == case.values

    def test_files_are_recognised(self, case: FormatCase, tmp_path: Path) -> None:
        if signature_of(case.format) == Signature(format=signature_of(case.format).format):
            pytest.skip("the files of this format have nothing to be recognised by")
        assert recognise(find(case.stored(tmp_path / "d"))) == case.format
        assert case.read(tmp_path / "d") == case.values

    def test_existing_files_are_kept(self, case: FormatCase, tmp_path: Path) -> None:
        case.stored(tmp_path / "d")
        with pytest.raises(AlreadyExistsError):
            case.stored(tmp_path / "d")
        assert case.read(tmp_path / "d", format=case.format) == case.values

    def test_append(self, case: FormatCase, tmp_path: Path) -> None:
        case.stored(tmp_path / "d", case.samples[:2])
        try:
            case.stored(tmp_path / "d", case.samples[2:], mode="append")
        except ArgumentError as error:
            pytest.skip(f"the format has no mode append: {error}")
        assert case.read(tmp_path / "d", format=case.format) == case.values

    def test_overwrite(self, case: FormatCase, tmp_path: Path) -> None:
        case.stored(tmp_path / "d")
        before = case.opened(tmp_path / "d", format=case.format)
        case.stored(tmp_path / "d", case.samples[:2], mode="overwrite")
        assert case.read(tmp_path / "d", format=case.format) == case.values[:2]
        with suppress(ShardexError):
            assert list(before) == case.values, "an open dataset raises an error, or reads what it was opened with"

    def test_no_samples(self, case: FormatCase, tmp_path: Path) -> None:
        case.stored(tmp_path / "d", [])
        ds = case.opened(tmp_path / "d", format=case.format)
        assert len(ds) == 0 and list(ds) == []

    def test_nothing_is_there_before_the_writer_is_closed(self, case: FormatCase, tmp_path: Path) -> None:
        options: Any = {"format": case.format, **case.write}
        writer = create(tmp_path / "d", case.schema, **options)
        writer.append(case.samples[0])
        with pytest.raises(NotFoundError):
            case.opened(tmp_path / "d", format=case.format)
        writer.abort()
        assert not (tmp_path / "d").exists()
        case.stored(tmp_path / "d")
        with suppress(ZeroDivisionError), create(tmp_path / "d", case.schema, mode="overwrite", **options) as writer:
            writer.append(case.samples[0])
            raise ZeroDivisionError("as user code does")
        assert case.read(tmp_path / "d", format=case.format) == case.values

    def test_a_sample_that_cannot_be_written_is_left_out(self, case: FormatCase, tmp_path: Path) -> None:
        with create(tmp_path / "d", case.schema, format=case.format, **case.write) as writer:
            for sample in case.samples:
                with pytest.raises(SchemaError, match="no such field"):
                    writer.append({**sample, "no such field": 1})
                writer.append(sample)
        with pytest.raises(ClosedError):
            writer.append(case.samples[0])
        assert case.read(tmp_path / "d", format=case.format) == case.values

    def test_options_are_checked(self, case: FormatCase, tmp_path: Path) -> None:
        with pytest.raises(ArgumentError, match="no_such_option"):
            case.stored(tmp_path / "d", no_such_option=1)
        assert not (tmp_path / "d").exists()
        case.stored(tmp_path / "d")
        with pytest.raises(ArgumentError, match="no_such_option"):
            case.opened(tmp_path / "d", format=case.format, no_such_option=1)

    def test_pickle(self, case: FormatCase, tmp_path: Path) -> None:
        ds = case.opened(case.stored(tmp_path / "d"), format=case.format)
        data = pickle.dumps(ds)
        again = pickle.loads(data)
        assert len(data) < _LARGEST_PICKLE
        assert list(again) == case.values and again.fingerprint == ds.fingerprint

    def test_a_copy_is_the_same_dataset(self, case: FormatCase, tmp_path: Path) -> None:
        case.stored(tmp_path / "d")
        shutil.copytree(tmp_path / "d", tmp_path / "copy", ignore=shutil.ignore_patterns(".shardex"))
        assert case.read(tmp_path / "copy", format=case.format) == case.values

    def test_remote_files(self, case: FormatCase, tmp_path: Path) -> None:
        """Files in a store without folders, local disk and links: what is written locally is read from there."""
        case.stored(tmp_path / "d")
        there = open_source(f"memory://copy{tmp_path}")
        for path in _files(tmp_path / "d"):
            there.put(path, (tmp_path / "d" / path).read_bytes())
        for access in ("ranged", "whole"):
            options: Any = {"format": case.format, "access": access, "cache": tmp_path / access}
            assert case.read(there.url, **options) == case.values

    def test_written_to_a_store(self, case: FormatCase, tmp_path: Path) -> None:
        url = f"memory://written{tmp_path}"
        try:
            case.stored(url)
        except ArgumentError as error:
            pytest.skip(f"the format is only written to local folders: {error}")
        assert case.read(url, format=case.format, cache=tmp_path / "cache") == case.values
        with pytest.raises(AlreadyExistsError):
            case.stored(url)

    def test_parts_of_a_job_are_joined_in_order(self, case: FormatCase, tmp_path: Path) -> None:
        tested = format_named(case.format)
        known = inspect.signature(tested.create).parameters
        cut = {"shard_rows": 2} if "shard_rows" in known else {"shard_size": 1} if "shard_size" in known else {}
        some = open_dataset(list(case.samples))
        for name, how in (("one", {"workers": 1}), ("threads", {"executor": "threads", "workers": 2})):
            options: Any = {**case.write, **cut, **how, "progress": False}
            write(tmp_path / name, some, case.schema, transform=dict, format=case.format, **options)
            found, expected = case.read(tmp_path / name, format=case.format), case.values
            if tested.name_field is not None:  # each part has names of its own
                for sample in found + expected:
                    del sample[tested.name_field]
            assert found == expected
        assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "threads"]

    def test_files_that_were_cut_off(self, case: FormatCase, tmp_path: Path) -> None:
        """Where the format can tell, an error names the file or the dataset; other exceptions are wrong."""
        case.stored(tmp_path / "d")
        for path in _files(tmp_path / "d"):
            data = (tmp_path / "d" / path).read_bytes()
            for length in sorted({0, 1, len(data) // 2, len(data) - 1} - {-1, len(data)}):
                self._check_damaged(case, tmp_path, path, data[:length])

    def test_files_with_changed_bytes(self, case: FormatCase, tmp_path: Path) -> None:
        case.stored(tmp_path / "d")
        for path in _files(tmp_path / "d"):
            data = (tmp_path / "d" / path).read_bytes()
            for at in range(0, len(data), max(1, len(data) // 8)):
                for value in (b"\0", b"\xff"):
                    self._check_damaged(case, tmp_path, path, data[:at] + value + data[at + 1 :])

    def _check_damaged(self, case: FormatCase, tmp_path: Path, path: str, data: bytes) -> None:
        """Assert that a dataset in which one file has other bytes is read, or raises an error that names the file."""
        folder = tmp_path / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "d", folder, ignore=shutil.ignore_patterns(".shardex"))
        (folder / path).write_bytes(data)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                list(case.opened(folder, format=case.format))
        except ShardexError as error:
            if os.path.basename(path) not in str(error) and str(folder) not in str(error):
                raise AssertionError(f"expected an error that names {folder / path}, got {error!r}") from error


def _files(folder: Path) -> list[str]:
    """Return the paths of the files of a dataset, without what shardex has saved beside them."""
    paths = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
    return [path for path in paths if not path.startswith(".shardex/")]
