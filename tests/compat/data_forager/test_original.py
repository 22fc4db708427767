"""Results and files are those of the real package, in both directions."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardex.compat.data_forager.datasets.jsonl import JsonlDataset
from shardex.compat.data_forager.datasets.tokens import TokensDataset
from shardex.compat.data_forager.datasets.tokens_with_aux import TokensWithAuxDataset
from tests.compat.data_forager.original import (
    OURS,
    call,
    files_of,
    index_all,
    natural_sorts,
    read_all,
    signatures,
    subsampled,
)

FIXTURES = Path(__file__).parents[2] / "fixtures" / "data-forager"
KINDS = ("lines", "tokens", "documents", "arrays")
SIGNATURES = [
    "sample_index:SampleLocation",
    "sample_index:SampleIndex",
    "index_stores.fs_based:IndexStore",
    "index_stores.fs_based:IndexStore.init_store",
    "index_stores.fs_based:IndexStore.add_sample",
    "index_stores.fs_based:IndexStore.set_sample_schema",
    "index_stores.fs_based:IndexStore.close",
    "index_stores.fs_based:IndexStore.load",
    "index_stores.fs_based:IndexStore.exists",
    "index_stores.fs_based:IndexStore.clear",
    "index_stores.common:IndexStoreInterface.add_sample",
    "utils:find_files_recursive",
    "utils:natural_sort",
    "indexers.jsonl_indexer:create_default_jsonl_indexer",
    "indexers.text_lines:FileTextLinesIndexer",
    "indexers.text_lines:FileTextLinesIndexer.__call__",
    "indexers.tokenization_indexer:create_tokenize_and_index_jsonl_text_func",
    "indexers.tokenization_indexer:create_tokenize_and_index_with_aux_func",
    "indexers.tokenization_indexer:get_text_from_jsonl",
    "datasets.common:Dataset.create_from_index_on_filesystem",
    "datasets.common:Dataset.__init__",
    "datasets.common:Dataset._process_sample",
    "datasets.common:Dataset.initialize",
    "datasets.common:SubsampledDataset",
    "datasets.jsonl:JsonlDataset",
    "datasets.tokens:TokensDataset",
    "datasets.tokens_with_aux:TokensWithAuxDataset",
    "sample_generators.common:SampleData",
    "sample_generators.common:NOOPSampleGenerator",
    "sample_generators.common:NOOPSampleGenerator.prepare",
    "sample_generators.common:NOOPSampleGenerator.create_samples",
    "sample_generators.common:NOOPSampleGenerator.finish",
    "sample_generators.common:noop_sample_processing",
    "sample_generators.tokenization:TokenizedSampleGenerator",
    "sample_generators.tokenization:TokenizedSampleGenerator.create_samples",
    "sample_generators.tokenization_with_aux:TokenizedSampleWithAuxGenerator",
    "sample_generators.aux:Part",
    "sample_generators.aux:LossMaskGenerator",
    "sample_generators.aux:LossMaskGenerator.generate",
    "sample_generators.aux:LossMaskGenerator.generate_for_eos",
    "sample_generators.schema:ArraySpec",
    "unzip_files:create_arg_parser",
    "unzip_files:find_zipped_files",
    "unzip_files:get_gzip_ext_pos",
    "unzip_files:get_unzipped_file_name",
    "unzip_files:unzip_file",
    "unzip_files:unzip_files",
]


def write_inputs(folder: Path) -> None:
    """Write JSON lines of different lengths and ends to files whose order is not alphabetical."""
    (folder / "sub").mkdir(parents=True)
    for number, name in enumerate(["part10.jsonl", "Part1.jsonl", "part2.jsonl", "sub/part3.jsonl", "upper.JSONL"]):
        lines = [json.dumps({"text": "héllo " * k, "n": [k, None, 1.5]}, ensure_ascii=k % 2 == 0) for k in range(9)]
        text = "".join(line + ("\r\n" if k % 3 == number % 3 else "\n") for k, line in enumerate(lines))
        (folder / name).write_text(text + '{"text": "no end"}' * (number == 2), encoding="utf-8", newline="")
    (folder / "empty.jsonl").touch()


def names_to_sort() -> list[list[str]]:
    rng = random.Random(0)
    words = ["part", "Part", "a", "B", "-", "_", ".", "/", " ", "1", "2", "10", "007", "x1y", "é"]
    numbered = [["/d/" + "".join(rng.choices(words, k=5)) + str(k) for k in range(20)] for _ in range(40)]
    similar = [["".join(rng.choices(["a", "A", "1", "01"], k=4)) for _ in range(20)] for _ in range(20)]
    return [*numbered, *similar]


QUESTIONS: dict[str, list[Any]] = {
    "signatures": [SIGNATURES],
    "subsampled": [[[100, 0.29, 1], [100, 0.5, 7, True], [3, 0.1, 0], [99, 1.0, 3], [99, 1.0, 3, True]]],
    "natural_sorts": [names_to_sort()],
}


@dataclass
class Both:
    """Folders of each kind, made by both packages from the same inputs, and answers of the real package."""

    ours: dict[str, str]
    real: dict[str, str]
    answers: dict[str, Any]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    folders = []
    for package in ("ours", "real"):
        root = tmp_path_factory.mktemp(package)
        write_inputs(root / KINDS[0])
        for kind in KINDS[1:]:
            shutil.copytree(root / KINDS[0], root / kind)
        folders.append({kind: str(root / kind) for kind in KINDS})
    ours, real = folders
    index_all(OURS, ours)
    return Both(ours, real, call("compare", {"index_all": [real], "read_all": [ours], **QUESTIONS}))


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_the_same_byte_by_byte(both: Both, kind: str) -> None:
    ours, real = files_of(Path(both.ours[kind])), files_of(Path(both.real[kind]))
    assert sorted(ours) == sorted(real)
    assert [name for name in real if ours[name] != real[name]] == []


def test_each_package_reads_what_the_other_wrote(both: Both) -> None:
    found = read_all(OURS, both.ours)
    assert found == read_all(OURS, both.real) == both.answers["read_all"]
    counts = {kind: len(some) for kind, some in found.items()}
    assert counts == {"lines": 46, "tokens": 70, "documents": 46, "arrays": 141}


def test_signatures_are_the_same(both: Both) -> None:
    real = both.answers["signatures"]
    assert {name: one for name, one in signatures(OURS, SIGNATURES).items() if one != real[name]} == {}


def test_subsampled_datasets_have_the_same_samples(both: Both) -> None:
    assert subsampled(OURS, *QUESTIONS["subsampled"]) == both.answers["subsampled"]


def test_files_are_sorted_the_same(both: Both) -> None:
    assert natural_sorts(OURS, *QUESTIONS["natural_sorts"]) == both.answers["natural_sorts"]


def test_fixtures_are_read() -> None:
    expected = json.loads((FIXTURES / "expected.json").read_text())
    lines = JsonlDataset.create_from_index_on_filesystem(str(FIXTURES / "jsonl_basic"))
    assert list(lines) == expected["jsonl_basic"]["samples"]
    assert lines._sample_index.sample_locations.tolist() == expected["jsonl_basic"]["sample_locations"]
    assert list(JsonlDataset.create_from_index_on_filesystem(str(FIXTURES / "empty"))) == []
    tokens = TokensDataset.create_from_index_on_filesystem(str(FIXTURES / "tokens_fixed"), token_dtype=np.uint16)
    assert [one.tolist() for one in tokens] == [one["values"] for one in expected["tokens_fixed"]["samples"]]
    documents = TokensDataset.create_from_index_on_filesystem(str(FIXTURES / "tokens_lines"), token_dtype=np.uint32)
    assert [one.tolist() for one in documents] == expected["tokens_lines"]["samples"]
    arrays = TokensWithAuxDataset.create_from_index_on_filesystem(str(FIXTURES / "tokens_aux"))
    assert [{name: array.tolist() for name, array in one.items()} for one in arrays] == expected["tokens_aux"][
        "samples"
    ]
    assert {name: array.dtype.str for name, array in arrays[0].items()} == expected["tokens_aux"]["dtypes"]
