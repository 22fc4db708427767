"""The real package data-forager, called in a process of its own: its import configures the root logger, and it prints.

`call` runs one of the functions of this file there and returns what it returns, through JSON.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

OURS = "shardex.compat.data_forager"
REAL = "data_forager"


def call(name: str, *arguments: Any) -> Any:
    """Call a function of this file with the real package."""
    if importlib.util.find_spec("data_forager") is None:
        raise ModuleNotFoundError("the tests compare with the package data-forager", name="data_forager")
    done = subprocess.run(
        [sys.executable, __file__, json.dumps([name, *arguments], default=str)],
        env={**os.environ, "PYBASE_SUPPRESS_LEGACY_WARNINGS": "1"},
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rsplit("\n", 1)[1])


def module(package: str, path: str) -> Any:
    """Import a module of one of both packages."""
    return importlib.import_module(f"{package}.{path}")


def letters(text: str) -> list[int]:
    """A tokenizer: the numbers of letters."""
    return [ord(letter) for letter in text]


def index_all(package: str, folders: dict[str, str]) -> None:
    """Make an index of each kind, in the folder that is given for it."""
    tokenization = module(package, "indexers.tokenization_indexer")
    aux = module(package, "sample_generators.aux")

    def parts(line: bytes) -> list[Any]:
        text = json.loads(line)["text"]
        return [aux.Part("system", text[:2]), aux.Part("prompt", text[2:5]), aux.Part(type="response", text=text[5:])]

    masks = {"loss_mask": aux.LossMaskGenerator(), "after": aux.LossMaskGenerator({"response"}, mask_eos=True)}
    module(package, "indexers.jsonl_indexer").create_default_jsonl_indexer(folders["lines"])()
    tokenization.create_tokenize_and_index_jsonl_text_func(
        tokenizer_func=letters, eos_idx=7, input_base_path=folders["tokens"], sample_size=16
    )()
    tokenization.create_tokenize_and_index_jsonl_text_func(
        letters, 7, folders["documents"], sample_size=None, token_dtype=np.uint32, file_name_postfix="ids"
    )()
    tokenization.create_tokenize_and_index_with_aux_func(
        parts, letters, 7, masks, input_base_path=folders["arrays"], sample_size=8
    )()


def read_all(package: str, folders: dict[str, str]) -> dict[str, list[Any]]:
    """Read all samples of each kind."""
    lines = module(package, "datasets.jsonl").JsonlDataset.create_from_index_on_filesystem(folders["lines"])
    make = module(package, "datasets.tokens").TokensDataset.create_from_index_on_filesystem
    tokens = make(folders["tokens"], token_dtype=np.uint16)
    documents = make(folders["documents"], token_dtype=np.uint32)
    arrays = module(package, "datasets.tokens_with_aux").TokensWithAuxDataset.create_from_index_on_filesystem(
        folders["arrays"]
    )
    return {
        "lines": [lines[k] for k in range(len(lines))],
        "tokens": [tokens[k].tolist() for k in range(len(tokens))],
        "documents": [documents[k].tolist() for k in range(len(documents))],
        "arrays": [{name: one.tolist() for name, one in arrays[k].items()} for k in range(len(arrays))],
    }


def compare(package: str, questions: dict[str, Any]) -> dict[str, Any]:
    """Answer all questions of `test_original` in one process."""
    return {name: globals()[name](package, *arguments) for name, arguments in questions.items()}


def signatures(package: str, names: list[str]) -> dict[str, Any]:
    """Return names, kinds and defaults of the parameters of functions, classes and methods."""
    found = {}
    for name in names:
        path, _, attribute = name.partition(":")
        value: Any = module(package, path)
        for part in attribute.split("."):
            value = getattr(value, part)
        parameters = inspect.signature(value).parameters.values()
        found[name] = [[one.name, one.kind.name, _plain(one.default)] for one in parameters if one.name != "self"]
    return found


def _plain(default: Any) -> str:
    return default.__name__ if isinstance(default, type) else repr(default)


def subsampled(package: str, sizes: list[list[Any]]) -> list[list[int]]:
    """Return the samples of `SubsampledDataset`, for arguments after the dataset."""
    made = module(package, "datasets.common").SubsampledDataset
    return [
        [int(one[k]) for k in range(len(one))]
        for size, *arguments in sizes
        for one in [made(list(range(size)), *arguments)]
    ]


def natural_sorts(package: str, names: list[list[str]]) -> list[list[str]]:
    """Sort lists of names."""
    return [list(module(package, "utils").natural_sort(some)) for some in names]


def files_of(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder, without those that only shardex has."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if ".shardex/" not in name and name != "index/shardex.json"}


if __name__ == "__main__":
    name, *arguments = json.loads(sys.argv[1])
    print("\n" + json.dumps(globals()[name](REAL, *arguments)), end="")
