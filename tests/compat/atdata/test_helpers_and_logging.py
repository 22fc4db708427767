"""Checksums of shards, the logger, annotations, and the places of names."""

import hashlib
import importlib
import io
import logging
import pickle
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest
from numpy.typing import NDArray

from shardex.compat import atdata
from shardex.compat.atdata import _type_utils as types_
from shardex.compat.atdata._helpers import ShardWriteResult, sha256_bytes, sha256_file
from shardex.compat.atdata.index import LocalDatasetEntry
from tests.compat.atdata.samples_for_manifests import shots


def test_checksums(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.tar", tmp_path / "bad.tar"
    good.write_bytes(b"x" * 3_000_000)
    bad.write_bytes(b"y")
    urls = [str(good), f"file://{good}", str(bad), str(tmp_path / "gone.tar"), "s3://b/a.tar", "at://x/y", "none.tar"]
    sums = dict.fromkeys(urls[:-1], hashlib.sha256(b"x" * 3_000_000).hexdigest())
    entry = LocalDatasetEntry("a", "atdata://local/schema/A@1.0.0", urls, {"checksums": sums})
    found = atdata.verify_checksums(entry)
    assert list(found) == urls
    ok = {str(good): "ok", f"file://{good}": "ok", str(bad): "mismatch", "s3://b/a.tar": "skipped"}
    assert found.items() >= {**ok, "at://x/y": "skipped", "none.tar": "skipped"}.items()
    assert found[urls[3]].startswith("error:")
    assert set(atdata.verify_checksums(LocalDatasetEntry("a", "b", urls)).values()) == {"skipped"}
    assert sha256_file(good) == sums[str(good)] == sha256_bytes(good.read_bytes())


def test_shard_write_result() -> None:
    result = pickle.loads(pickle.dumps(ShardWriteResult(["a.tar"], {"a.tar": "0"})))
    assert (result, result.checksums) == (["a.tar"], {"a.tar": "0"})
    assert isinstance(result, list)


def test_logger(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    default = atdata.get_logger()
    with caplog.at_level(logging.INFO, "atdata"):
        atdata.write_samples(shots(2), tmp_path / "a.tar")
    assert [record.getMessage().split(":")[1].split()[0] for record in caplog.records] == [
        "started",
        "wrote",
        "completed",
    ]

    class Recorder:
        def __init__(self) -> None:
            self.lines: list[str] = []

        def info(self, msg: str, *args: Any, **kwargs: Any) -> None:
            self.lines.append(msg % args)

        debug = warning = error = info

    recorder = Recorder()
    try:
        atdata.configure_logging(recorder)
        with pytest.raises(ValueError, match="at least one"):
            atdata.write_samples([], tmp_path / "a.tar")
        with atdata.log_operation("step", n=3):
            pass
        with pytest.raises(TypeError, match="debug"):
            atdata.configure_logging(3)  # type: ignore[arg-type]
    finally:
        atdata.configure_logging(default)
    assert "failed after" in recorder.lines[1]
    assert recorder.lines[2] == "step: started (n=3)"


def test_annotations() -> None:
    assert types_.unwrap_optional(Optional[int]) == types_.unwrap_optional(int | None) == (int, True)  # noqa: UP045
    assert types_.unwrap_optional(int) == (int, False)
    with pytest.raises(TypeError, match="one type"):
        types_.unwrap_optional(int | str)
    for hint in (NDArray, NDArray[np.int8], NDArray[Any], np.ndarray, Optional[NDArray[Any]]):  # noqa: UP045
        assert types_.is_ndarray_type(hint)
    assert not types_.is_ndarray_type(list[float])
    assert types_.extract_ndarray_dtype(NDArray[np.uint8]) == "uint8"
    assert types_.extract_ndarray_dtype(NDArray[Any]) == types_.extract_ndarray_dtype(NDArray) == "float32"
    assert types_.numpy_dtype_to_string(np.dtype("complex128")) == "complex128"
    assert types_.parse_semver("10.2.3") == (10, 2, 3)
    for wrong in ("1.2", "1.2.x", "1.-2.3"):
        with pytest.raises(ValueError, match="three numbers"):
            types_.parse_semver(wrong)


def test_encodings_of_arrays(compact_arrays: None) -> None:
    array = np.arange(6, dtype="<i2").reshape(2, 3)
    compact = atdata._helpers.array_to_bytes(array)
    assert compact[:4] == b"\x03<i2"
    atdata.configure_arrays("npy")
    npy = atdata._helpers.array_to_bytes(array)
    assert np.array_equal(np.load(io.BytesIO(npy)), array)
    assert all(np.array_equal(atdata._helpers.bytes_to_array(one), array) for one in (compact, npy))
    with pytest.raises(ValueError, match="npy, compact"):
        atdata.configure_arrays("pickle")


@pytest.mark.parametrize(
    "name", ["index", "stores", "providers", "repository", "promote", "search", "atmosphere", "local"]
)
def test_modules_have_their_names(name: str) -> None:
    module = importlib.import_module(f"shardex.compat.atdata.{name}")
    assert all(hasattr(module, one) for one in module.__all__)


def test_former_name_of_the_index() -> None:
    with pytest.warns(DeprecationWarning, match="AbstractIndex"):
        assert atdata.AbstractIndex is importlib.import_module("shardex.compat.atdata._protocols").AbstractIndex
    with pytest.raises(AttributeError, match="nothing"):
        _ = atdata.nothing
