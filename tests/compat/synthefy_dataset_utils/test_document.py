"""Every code block of the document of synthefy-dataset-utils runs, in order; only import lines are changed."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shardex.compat.synthefy_dataset_utils import ShardedDatasetReader, ShardedDatasetWriter
from tests.compat.document import code_blocks

SUBSTITUTES = {
    "ShardedDatasetWriter(root: str, samples_per_shard: int = 1000)": "ShardedDatasetWriter(root, 1000)",
    "ShardedDatasetReader(root: str, cache_tars: bool = True)": "ShardedDatasetReader(root, True)",
    "np.array(...)": "np.array([1.5, 2.5])",
}
"""Signatures and placeholders that are no Python, or that no array is made of."""


class Source(list[Any]):
    """What `add_batch` of the document takes: items with x and y, and a name."""

    def __init__(self, name: str, count: int) -> None:
        super().__init__(SimpleNamespace(x=np.arange(n), y=np.array([n])) for n in range(count))
        self.name = name


def names() -> dict[str, Any]:
    """What the document takes for granted: a dataset at `root`, functions and sources of data."""
    with ShardedDatasetWriter("reference") as writer:
        writer.add_fields(["history", "target", "forecast"])
        for n in range(5):
            writer.add_sample({"history": np.arange(n + 2), "target": np.zeros(3)}, metadata={"length": 127 + n})
    return {
        "root": "reference",
        "your_data_generator": lambda: iter([("id2", np.array([2.0])), ("streamed", np.array([3.0]))]),
        "generate_forecast": lambda sample_id: np.full(3, int(sample_id[-3:])),
        **{f"source_{one}": Source(one, 4) for one in "abc"},
    }


def test_document_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    namespace = names()
    blocks = code_blocks("000.md", "synthefy_dataset_utils", SUBSTITUTES)
    assert len(blocks) == 17  # two others say how to install the package
    for block in blocks:
        block.run(namespace)
    assert capsys.readouterr().out.splitlines() == [
        "Total samples: 10000",
        "Available fields: ['forecast', 'history', 'target']",
        "History shape: (100,)",
        "Metadata: {'length': 100, 'source': 'synthetic'}",
    ]
    assert namespace["distribution"] == {0: 9}
    assert namespace["ids"] == ["sample_000000000003", "sample_000000000004", "sample_000000000005"]
    assert namespace["ids_with_forecast"] == []
    assert [arrays["history"].tolist() for arrays, _ in namespace["results"]] == [[1.5, 2.5], [2.0], [1.5, 2.5]]
    namespace["reader"].close()
    namespace["writer"].close()

    with ShardedDatasetReader("my_dataset") as reader:
        assert reader.get_sample("sample_000000000999", ["new_forecast"])[0]["new_forecast"].tolist() == [999] * 3
        assert reader.shard_counts("new_forecast") == dict.fromkeys(range(10), 1000)
    with ShardedDatasetReader("reference") as reader:
        assert len(reader.get_many(reader.query_ids())) == 11  # none was lost when the shard was written again
        assert reader.get_sample("my_custom_id")[1] == {"key": "new_value"}
    with ShardedDatasetReader("growing_dataset") as reader:
        assert [meta["source"] for _, meta in reader.get_many(reader.query_ids())] == [*"aaaabbbbcccc"]
        assert "length" in reader.conn.execute("SELECT * FROM samples").fetchone().keys()  # noqa: SIM118
    assert sorted(os.listdir("growing_dataset")) == ["index.sqlite", "input_shards", "output_shards"]
