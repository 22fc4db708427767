"""The real package data-forager in a process of its own: its import configures the root logger, and it prints.

Call `aux_dataset` to make a dataset, and `read_arrays` or `read_tokens` to read one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np


def aux_dataset(inputs: Path, output: Path, lines: int = 6, size: int = 4) -> Path:
    """Make samples of `size` tokens with a loss mask."""
    inputs.mkdir(parents=True)
    parts = [
        [{"type": "prompt", "text": "p" * k}, {"type": "response", "text": "answer"[:k]}] for k in range(1, lines + 1)
    ]
    (inputs / "a.jsonl").write_text("".join(json.dumps({"parts": one}) + "\n" for one in parts))
    _run("make", str(inputs), str(output), size)
    return output


def read_arrays(path: Path) -> list[dict[str, list[Any]]]:
    """Return the samples that `TokensWithAuxDataset` reads."""
    return list(_run("arrays", str(path)))


def read_tokens(path: Path, dtype: str) -> list[list[Any]]:
    """Return the samples that `TokensDataset` reads."""
    return list(_run("tokens", str(path), dtype))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the samples that `JsonlDataset` reads."""
    return list(_run("lines", str(path)))


def _run(*command: Any) -> Any:
    if importlib.util.find_spec("data_forager") is None:
        raise ModuleNotFoundError("the tests compare with the package data-forager", name="data_forager")
    done = subprocess.run(
        [sys.executable, __file__, json.dumps(command)],
        env={**os.environ, "PYBASE_SUPPRESS_LEGACY_WARNINGS": "1"},
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rsplit("\n", 1)[1])


def _make(inputs: str, output: str, size: int) -> None:
    from data_forager.indexers.tokenization_indexer import create_tokenize_and_index_with_aux_func
    from data_forager.sample_generators.aux import LossMaskGenerator, Part

    def parse(line: bytes) -> list[Any]:
        return [Part(**one) for one in json.loads(line)["parts"]]

    create_tokenize_and_index_with_aux_func(
        process_parts_func=parse,
        tokenizer_func=lambda text: [ord(letter) for letter in text],
        eos_idx=0,
        aux_generators={"loss_mask": LossMaskGenerator()},
        input_base_path=inputs,
        output_base_path=output,
        sample_size=size,
        token_dtype=np.uint16,
    )()


def _arrays(path: str) -> list[dict[str, list[Any]]]:
    from data_forager.datasets.tokens_with_aux import TokensWithAuxDataset

    real = TokensWithAuxDataset.create_from_index_on_filesystem(path)
    return [{name: array.tolist() for name, array in real[k].items()} for k in range(len(real))]


def _tokens(path: str, dtype: str) -> list[list[Any]]:
    from data_forager.datasets.tokens import TokensDataset

    real = TokensDataset.create_from_index_on_filesystem(path, token_dtype=np.dtype(dtype))
    return [real[k].tolist() for k in range(len(real))]


def _lines(path: str) -> list[dict[str, Any]]:
    from data_forager.datasets.jsonl import JsonlDataset

    real = JsonlDataset.create_from_index_on_filesystem(path)
    return [real[k] for k in range(len(real))]


if __name__ == "__main__":
    name, *arguments = json.loads(sys.argv[1])
    functions: dict[str, Any] = {"make": _make, "arrays": _arrays, "tokens": _tokens, "lines": _lines}
    found = functions[name](*arguments)
    print("\n" + json.dumps(found), end="")
