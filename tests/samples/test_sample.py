"""`DictSample` and `Batch`."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from shardex.errors import FieldError, RowError
from shardex.kernel import MISSING, Columns, Masked, Ragged
from shardex.samples import Batch, DictSample


def test_fields_by_attribute_and_by_name() -> None:
    sample = DictSample({"x": 1, "name": "a"})
    assert sample.x == sample["x"] == 1
    sample.y = 2
    assert dict(sample) == sample.to_dict() == {"x": 1, "name": "a", "y": 2}
    assert sample.get("z") is None and "x" in sample


def test_a_missing_field_error_lists_the_fields() -> None:
    sample = DictSample(x=1, y=2)
    with pytest.raises(AttributeError, match="expected one of the fields x, y, got 'z'"):
        _ = sample.z
    with pytest.raises(KeyError):
        _ = sample["z"]


def test_equality_works_with_arrays() -> None:
    a = DictSample(x=np.array([1.0, np.nan]), deep={"y": [np.arange(3)]})
    assert a == DictSample(x=np.array([1.0, np.nan]), deep={"y": [np.arange(3)]})
    assert a != DictSample(x=np.array([1.0, 2.0]), deep={"y": [np.arange(3)]})
    assert a != DictSample(x=np.array([1.0, np.nan], np.float32), deep={"y": [np.arange(3)]})
    assert a != DictSample(x=np.array([1.0, np.nan]))
    assert DictSample(x=1) != 1


def test_repr_is_short() -> None:
    text = repr(DictSample(image=np.zeros((64, 64, 3), np.uint8), text="a" * 1000))
    assert text.startswith("DictSample(image=uint8[64, 64, 3], text='aaa") and len(text) < 120


def test_samples_can_be_pickled() -> None:
    sample = DictSample(x=np.arange(3))
    assert pickle.loads(pickle.dumps(sample)) == sample
    assert type(pickle.loads(pickle.dumps(sample))) is DictSample


@pytest.fixture
def batch() -> Batch:
    ragged = Ragged.from_arrays([np.arange(2), np.arange(3), np.arange(0)])
    return Batch(Columns({"x": np.arange(6).reshape(3, 2), "r": ragged, "name": ["a", MISSING, "c"]}))


def test_a_batch_is_columns_and_samples(batch: Batch) -> None:
    assert batch.x.tolist() == [[0, 1], [2, 3], [4, 5]] and batch["r"].pad().shape == (3, 3)
    assert batch.name == ["a", None, "c"], "what a sample lacks is None in a column"
    assert len(batch) == 3 and batch.keys() == ["x", "r", "name"] and "x" in batch
    assert batch[1] == DictSample(x=np.array([2, 3]), r=np.arange(3)), "and absent in a sample"
    assert batch[-1] == batch[2] == batch.samples[2]
    assert [s.get("name") for s in batch] == ["a", None, "c"]


def test_lists_of_equal_arrays_are_stacked_on_access() -> None:
    same, other, single = [np.zeros(2), np.ones(2)], [np.zeros(2), np.zeros(3)], [np.array(1), np.array(2)]
    batch = Batch(Columns({"same": same, "other": other, "single": single, "mixed": [np.zeros(1), None]}))
    assert batch.same.tolist() == [[0, 0], [1, 1]] and batch.other is other and batch.mixed[1] is None
    assert batch.single.tolist() == [1, 2] and batch[0].single.shape == (), "samples keep arrays of no dimensions"
    assert batch[1].same.tolist() == [1, 1]


def test_a_batch_of_samples() -> None:
    batch = Batch.of([DictSample(x=np.zeros(2), n="a"), {"x": np.ones(2), "n": "b"}])
    assert batch.x.shape == (2, 2) and batch.n == ["a", "b"] and batch.sample_type is DictSample


def test_slices_of_a_batch(batch: Batch) -> None:
    assert list(batch[1:]) == list(batch)[1:]
    assert list(batch[::-1]) == list(batch)[::-1]


def test_batches_compare_and_pickle(batch: Batch) -> None:
    again = pickle.loads(pickle.dumps(batch))
    assert again == batch and again.r.offsets.tolist() == [0, 2, 5, 5]
    assert batch != batch[:2]


def test_missing_fields_and_samples_of_a_batch_are_errors(batch: Batch) -> None:
    with pytest.raises(AttributeError, match="expected one of the fields x, r, name, got 'y'"):
        _ = batch.y
    with pytest.raises(FieldError):
        _ = batch["y"]
    with pytest.raises(RowError):
        _ = batch[3]


def test_a_field_can_be_set(batch: Batch) -> None:
    batch.x = batch.x * 2
    assert batch.x.sum() == 30
    assert "x" in dir(batch)
    assert "3 samples" in repr(batch)


def test_values_set_for_an_optional_field_keep_its_mask() -> None:
    batch = Batch(Columns({"x": Masked(np.array([1.0, np.nan]), np.array([True, False]))}))
    batch.x = batch.x * 2
    assert batch.mask_of("x").tolist() == [True, False] and batch[0] == DictSample(x=2.0) and batch[1].x is None
    batch.x = np.float64(3)  # one number for the whole batch, such as a loss
    assert batch.columns.data["x"] == 3
