"""`sx.write` and `sx.tokenize` with executor="ray": the same files as without workers, errors that name the sample."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from tests.text.corpora import bpe, documents


def contents(folder: Path) -> dict[str, str]:
    """Return the hash of each data file; manifests and indexes hold times."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    inner = {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return {name: one for name, one in inner.items() if not name.startswith(("_shardex", ".shardex"))}


def samples(count: int) -> sx.Dataset:
    return sx.open([{"x": np.full(300, number, "float32"), "name": f"sample {number}"} for number in range(count)])


def double(sample: Any) -> dict[str, Any]:
    return {"x": sample.x * 2, "name": sample.name}


@pytest.mark.parametrize("format", ["arrow", *(pytest.param(one, marks=pytest.mark.long) for one in ("jsonl", "tar"))])
def test_same_files_as_in_this_process(ray_cluster: Any, tmp_path: Path, format: str) -> None:
    options: dict[str, Any] = {"transform": double, "format": format, "progress": False}
    for name, executor in {"here": None, "ray": "ray"}.items():
        sx.write(tmp_path / name, samples(1_000), executor=executor, **options)
    assert sorted(contents(tmp_path / "ray").values()) == sorted(contents(tmp_path / "here").values())
    assert len(sx.open(tmp_path / "ray")) == 1_000


def fail_at(sample: Any) -> dict[str, Any]:
    if sample.name == "sample 70":
        raise ZeroDivisionError("no")
    return double(sample)


def test_error_names_the_sample(ray_cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError, match="no") as raised:
        sx.write(tmp_path / "out", samples(100), transform=fail_at, executor="ray", progress=False)
    assert any("70" in note for note in raised.value.__notes__)
    assert not (tmp_path / "out").exists() or not contents(tmp_path / "out")


def test_tokenize(ray_cluster: Any, tmp_path: Path) -> None:
    texts, tokenizer = [{"text": text} for text in documents(500)], bpe()
    for name, executor in {"here": None, "ray": "ray"}.items():
        sx.tokenize(texts, tokenizer, tmp_path / name, eos=0, batch_size=64, executor=executor, progress=False)
    assert contents(tmp_path / "ray") == contents(tmp_path / "here")
