"""Datasets and samples for tests."""

import dataclasses
import os
import tempfile
import types
import typing
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from shardex.compat.atdata._dataset import Dataset
from shardex.compat.atdata._samples import packable
from shardex.compat.atdata._type_utils import is_ndarray_type
from shardex.compat.atdata._waiting import Waiting
from shardex.compat.atdata._write import write_samples
from shardex.compat.atdata.index import Index
from shardex.compat.atdata.providers._sqlite import SqliteProvider
from shardex.errors import SchemaError
from shardex.features import kinds

__all__ = ["MockAtmosphere", "MockAtmosphereClient", "make_dataset", "make_samples", "mock_index"]

ST = TypeVar("ST")
_INSTEAD = "make_dataset(folder, samples)"


def make_dataset(
    path: str | os.PathLike[str], samples: Sequence[Any], *, name: str = "test", sample_type: type | None = None
) -> Dataset[Any]:
    """Write samples to the tar ``{name}-000000.tar`` in a folder, and return them as a dataset."""
    written = write_samples(samples, os.path.join(path, f"{name}-000000.tar"))
    return written if sample_type is None else Dataset[sample_type](written.source)  # type: ignore[valid-type]


def make_samples(sample_type: type[ST], n: int = 10, seed: int | None = None) -> list[ST]:
    """Return samples of a class with values made up from the types of its fields; a seed gives the same ones again.

    Text is the name of the field and a number, whole numbers count, booleans alternate; floats, bytes and arrays
    (always float32 of shape (4, 4)) are random; lists have three texts; optional fields with a default keep it.
    """
    if not dataclasses.is_dataclass(sample_type):
        raise SchemaError(f"expected a class made by @packable, got {sample_type!r}")
    rng, hints = np.random.default_rng(seed), kinds.hints_of(sample_type)
    fields = [one for one in dataclasses.fields(sample_type) if not _keeps_default(one, hints[one.name])]
    return [
        sample_type(**{one.name: _value(one.name, hints[one.name], number, rng) for one in fields})
        for number in range(n)
    ]


def _keeps_default(field: "dataclasses.Field[Any]", hint: Any) -> bool:
    given = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    return given and type(None) in typing.get_args(hint)


def _value(name: str, hint: Any, number: int, rng: np.random.Generator) -> Any:
    plain = hint.__origin__ if hasattr(hint, "__metadata__") else hint
    several = [one for one in typing.get_args(plain) if one is not type(None)]
    is_union = typing.get_origin(plain) in (typing.Union, types.UnionType)
    kind = several[0] if is_union and len(several) == 1 else plain
    if is_ndarray_type(kind):
        return rng.standard_normal((4, 4)).astype(np.float32)
    if "list" in str(kind):
        return [f"{name}_{number}_{k}" for k in range(3)]
    made: dict[Any, Callable[[], Any]] = {
        int: lambda: number,
        float: lambda: float(rng.random()),
        bool: lambda: number % 2 == 0,
        bytes: lambda: rng.bytes(16),
        dict: dict,
    }
    return made[kind]() if kind in made else f"{name}_{number}"


class MockAtmosphere(Waiting, instead=_INSTEAD, methods="login create_record get_record list_records reset"):
    """A session of ATProto in memory, which waits for the catalog."""


MockAtmosphereClient = MockAtmosphere

with suppress(ImportError):
    import pytest

    @pytest.fixture
    def tmp_dataset(tmp_path: Path) -> Dataset[Any]:
        """Ten samples with a `name` and a `value` in a temporary folder, for tests that import this fixture."""

        @packable
        class Sample:
            name: str
            value: int

        return make_dataset(tmp_path, [Sample(f"s{k}", k) for k in range(10)])

    @pytest.fixture
    def tmp_index(tmp_path: Path) -> Index:
        """An index in a temporary folder, for tests that import this fixture."""
        return mock_index(tmp_path)


def mock_index(path: Path | None = None, **kwargs: Any) -> Index:
    """Return an index in a file ``test_index.db`` of a folder, by default a temporary one, without ATProto."""
    folder = Path(tempfile.mkdtemp()) if path is None else Path(path)
    return Index(SqliteProvider(folder / "test_index.db"), atmosphere=None, **kwargs)
