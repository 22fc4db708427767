"""Values made to fit the fields of a class."""

from __future__ import annotations

import pytest

from shardex.errors import SchemaError
from shardex.kernel import Columns
from shardex.samples.class_record import ClassFitter, record_of
from shardex.samples.packable import packable


@packable
class Point:
    x: int = None  # type: ignore[assignment]


@pytest.mark.parametrize("stored", [True, False])
def test_none_does_not_fit_a_field_that_is_not_optional_though_its_default_is_none(stored: bool) -> None:
    fitter = ClassFitter(record_of(Point), stored=stored)
    for values in ({"x": None}, {}):
        with pytest.raises(SchemaError, match="expected int64, got none - at sample 4, field x of Point"):
            fitter.sample(values, ["x"], lambda k: f"sample {k + 4}")
        columns = Columns({name: [1, value] for name, value in values.items()}, 2)
        with pytest.raises(SchemaError, match=r"expected int64, got none - at sample [45], field x of Point"):
            fitter.columns(columns, ["x"], lambda k: f"sample {k + 4}")
