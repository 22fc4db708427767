"""The code blocks of the document of data-forager run, with only import lines changed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardex.compat.data_forager.datasets.jsonl import JsonlDataset
from shardex.compat.data_forager.indexers.jsonl_indexer import create_default_jsonl_indexer
from tests.compat.document import DOCUMENTS, code_blocks

TEXTS = [f"Sample {k} of a small corpus, written by hand." * (k % 7) for k in range(100)]


def make_tokenizer(folder: Path) -> None:
    """Write a small tokenizer that `AutoTokenizer.from_pretrained` finds under the name in the document."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted({letter for text in TEXTS for letter in text} | {"<eos>", "<unk>"})
    tokenizer = Tokenizer(models.WordLevel({letter: k for k, letter in enumerate(letters)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made: Any = PreTrainedTokenizerFast
    made(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(folder)


@pytest.mark.filterwarnings("default")  # of the package transformers
def test_every_code_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    for folder in ("data", "corpus"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.jsonl").write_text(
            "".join(json.dumps({"text": text, "source": "hand"}) + "\n" for text in TEXTS)
        )
    make_tokenizer(tmp_path / "Qwen" / "Qwen2.5-1.5B")
    create_default_jsonl_indexer("./data")()  # for the first block, which opens a dataset before the document makes one
    namespace: dict[str, Any] = {"JsonlDataset": JsonlDataset, "DataLoader": torch.utils.data.DataLoader}
    blocks = code_blocks("002.md", "data_forager", {})
    assert len(blocks) == 8
    for block in blocks:
        for folder in ("data", "corpus"):
            if "indexer()" in block.code and f"./{folder}" in block.code:  # the document makes the same indexes twice
                shutil.rmtree(tmp_path / folder / "index", ignore_errors=True)
                shutil.rmtree(tmp_path / folder / "tokenized-samples", ignore_errors=True)
        block.run(namespace)
        if "texts" in namespace:
            assert all(text in TEXTS for text in namespace.pop("texts"))
        if "sample = dataset[0]" in block.code and "Tokens" in block.code:
            assert namespace["sample"].dtype == np.uint16
        elif "sample = dataset[0]" in block.code:
            assert namespace["sample"] == {"text": TEXTS[0], "source": "hand"}
    inputs, labels = namespace["input_ids"], namespace["labels"]
    assert inputs.shape[1] == 1023
    assert (labels[:, :-1] == inputs[:, 1:]).all()
    assert [path.name for path in (tmp_path / "corpus/tokenized-samples").iterdir()] == ["a-tokenized-samples.bin"]


def test_other_blocks_are_no_python() -> None:
    text = (DOCUMENTS / "002.md").read_text("utf-8")
    others = [kind for kind in re.findall(r"^```(.*)$", text, re.MULTILINE)[::2] if kind != "python"]
    assert others == ["", "bash", "bash"]  # a figure, and two ways to install the package
