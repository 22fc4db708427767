"""Indexers: what becomes of lines, runs that fail or are killed, stores and generators of users."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import shardex as sx
from shardex.compat.data_forager.datasets.jsonl import JsonlDataset
from shardex.compat.data_forager.datasets.tokens import TokensDataset
from shardex.compat.data_forager.datasets.tokens_with_aux import TokensWithAuxDataset
from shardex.compat.data_forager.index_stores.fs_based import IndexStore
from shardex.compat.data_forager.indexers.jsonl_indexer import create_default_jsonl_indexer
from shardex.compat.data_forager.indexers.text_lines import FileTextLinesIndexer, NOOPSampleGenerator, SampleData
from shardex.compat.data_forager.indexers.tokenization_indexer import (
    create_tokenize_and_index_jsonl_text_func,
    create_tokenize_and_index_with_aux_func,
    get_text_from_jsonl,
)
from shardex.compat.data_forager.sample_generators.aux import LossMaskGenerator, Part
from shardex.compat.data_forager.sample_generators.tokenization import TokenizedSampleGenerator
from shardex.compat.data_forager.sample_index import SampleIndex
from shardex.errors import SchemaError, ShardexError


def letters(text: str) -> list[int]:
    return list(text.encode())


def write_texts(path: Path, *texts: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def tokens_of(folder: Path, dtype: Any = np.uint16) -> list[list[int]]:
    return [one.tolist() for one in TokensDataset.create_from_index_on_filesystem(str(folder), token_dtype=dtype)]


def contents(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if ".shardex" not in str(path))


# -- lines --------------------------------------------------------------------------------------------------------


def test_blank_lines_and_marks_are_left_out_of_json_lines(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n  \t\r\n{"a": 2}\n\n')
    (tmp_path / "blank.jsonl").write_bytes(b"\n \n")
    create_default_jsonl_indexer(str(tmp_path))()
    lines = JsonlDataset.create_from_index_on_filesystem(str(tmp_path))
    assert list(lines) == [{"a": 1}, {"a": 2}]
    assert lines._sample_index.sample_locations.tolist() == [[0, 3, 10], [0, 19, 9]]
    assert (tmp_path / "index/file_location.txt").read_text() == "a.jsonl\n"


def test_every_line_of_other_files_is_a_sample(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\n\n two\r\nlast")
    FileTextLinesIndexer([str(tmp_path / "a.txt")], IndexStore(str(tmp_path)))()
    index = IndexStore(str(tmp_path)).load()
    assert index.sample_locations.tolist() == [[0, 0, 4], [0, 4, 1], [0, 5, 6], [0, 11, 4]]


def test_parts_of_big_files_are_scanned_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardex.files.scan.PART_BYTES", 64)
    lines = [json.dumps({"n": "x" * (k % 40)}) + ("\r\n" if k % 3 else "\n") * (k < 299) for k in range(300)]
    (tmp_path / "a.jsonl").write_text("".join(lines), newline="")
    create_default_jsonl_indexer(str(tmp_path))()
    sizes = [len(line) for line in lines]
    expected = [[0, begin, size] for begin, size in zip(np.cumsum([0, *sizes]).tolist(), sizes, strict=False)]
    assert IndexStore(str(tmp_path)).load().sample_locations.tolist() == expected


def test_folders_with_brackets_are_searched(tmp_path: Path) -> None:
    write_texts(tmp_path / "run[1]" / "a.jsonl", "x")
    (tmp_path / "run[1]" / "folder.jsonl").mkdir()
    create_default_jsonl_indexer(str(tmp_path / "run[1]"))()
    assert len(JsonlDataset.create_from_index_on_filesystem(str(tmp_path / "run[1]"))) == 1


def test_no_files_are_an_empty_dataset(tmp_path: Path) -> None:
    create_default_jsonl_indexer(str(tmp_path))()
    assert (tmp_path / "index/sample_locations.bin").read_bytes() == b""
    assert list(JsonlDataset.create_from_index_on_filesystem(str(tmp_path))) == []


def test_files_that_are_listed_twice_or_missing_raise(tmp_path: Path) -> None:
    write_texts(tmp_path / "a.jsonl", "x")
    path = str(tmp_path / "a.jsonl")
    with pytest.raises(ValueError, match="expected each file once"):
        FileTextLinesIndexer([path, path], IndexStore(str(tmp_path)))()
    with pytest.raises(FileNotFoundError):
        FileTextLinesIndexer([path + "x"], IndexStore(str(tmp_path)))()
    assert contents(tmp_path) == ["a.jsonl"]


def test_nothing_is_printed_and_logging_is_left_alone(tmp_path: Path) -> None:
    write_texts(tmp_path / "a.jsonl", "x")
    code = f"""
import logging
from shardex.compat.data_forager.indexers.tokenization_indexer import create_tokenize_and_index_jsonl_text_func as make
make(lambda text: [1], 0, {str(tmp_path)!r}, sample_size=1)()
assert not logging.getLogger().handlers and logging.getLogger().level == logging.WARNING
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")


# -- tokens -------------------------------------------------------------------------------------------------------


def test_inputs_of_the_same_name_get_files_of_their_own(tmp_path: Path) -> None:
    for name in ("x/a", "y/a", "y/a-2"):
        write_texts(tmp_path / f"{name}.jsonl", name)
    create_tokenize_and_index_jsonl_text_func(letters, 0, str(tmp_path))()
    assert sorted(os.listdir(tmp_path / "tokenized-samples")) == [
        "a-2-tokenized-samples.bin",
        "a-3-tokenized-samples.bin",
        "a-tokenized-samples.bin",
    ]
    assert [bytes(one).decode() for one in tokens_of(tmp_path)] == ["x/a", "y/a-2", "y/a"]


@pytest.mark.parametrize("kind", [np.array, tuple, list])
def test_tokenizers_may_return_arrays(tmp_path: Path, kind: Any) -> None:
    write_texts(tmp_path / "a.jsonl", "x", "y")
    create_tokenize_and_index_jsonl_text_func(lambda text: kind([10, 20, 30]), 5, str(tmp_path), sample_size=4)()
    assert tokens_of(tmp_path) == [[10, 20, 30, 5], [10, 20, 30, 5]]


@pytest.mark.parametrize(("ids", "eos"), [([70000], 0), ([1 << 40], 0), ([-1], 0), ([1], 70000), (["a"], 0)])
def test_tokens_that_do_not_fit_raise(tmp_path: Path, ids: list[Any], eos: int) -> None:
    write_texts(tmp_path / "a.jsonl", "x")
    indexer = create_tokenize_and_index_jsonl_text_func(lambda text: ids, eos, str(tmp_path), sample_size=1)
    with pytest.raises(OverflowError if ids != ["a"] else ValueError) as caught:
        indexer()
    assert isinstance(caught.value, ShardexError)
    assert contents(tmp_path) == ["a.jsonl"]


def test_blank_lines_do_not_end_a_run(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "a"}\n\n{"text": ""}\n')
    create_tokenize_and_index_jsonl_text_func(letters, 0, str(tmp_path))()
    assert tokens_of(tmp_path) == [[97], []]


def test_other_folders_functions_and_stores(tmp_path: Path) -> None:
    write_texts(tmp_path / "in/a.jsonl", "ab")
    write_texts(tmp_path / "in/b.txt", "cd")
    inputs = [str(tmp_path / "in" / name) for name in ("b.txt", "a.jsonl")]
    create_tokenize_and_index_jsonl_text_func(
        letters,
        0,
        input_file_paths=inputs,
        output_base_path=str(tmp_path / "out"),
        base_output_path=str(tmp_path / "elsewhere"),
        process_text_line_func=lambda line: get_text_from_jsonl(line).upper(),
        token_dtype=np.int64,
        sample_size=3,
        logger=logging.getLogger("mine"),
        name="mine",
    )()
    assert tokens_of(tmp_path / "out", np.int64) == [[*b"CD", 0], [*b"AB", 0]]
    assert (tmp_path / "out/index/file_location.txt").read_text().splitlines() == [
        "../elsewhere/b-tokenized-samples.bin",
        "../elsewhere/a-tokenized-samples.bin",
    ]
    store = IndexStore(str(tmp_path / "third"), "places")
    create_tokenize_and_index_jsonl_text_func(letters, 0, str(tmp_path / "in"), index_store=store)()
    assert len(store.load()) == 1


def test_missing_arguments_raise_value_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="input_base_path= or input_file_paths="):
        create_tokenize_and_index_jsonl_text_func(letters, 0)
    with pytest.raises(ValueError, match="output_base_path= or input_base_path="):
        create_tokenize_and_index_jsonl_text_func(letters, 0, input_file_paths=[])
    with pytest.raises(ValueError, match="aux_generators="):
        create_tokenize_and_index_with_aux_func(lambda line: [], letters, 0, {}, str(tmp_path))
    with pytest.raises(ValueError, match="sample_size"):
        create_tokenize_and_index_jsonl_text_func(letters, 0, str(tmp_path), sample_size=0)
    with pytest.raises(ValueError, match="token_dtype="):
        create_tokenize_and_index_jsonl_text_func(letters, 0, str(tmp_path), token_dtype=np.float32)


def test_errors_of_functions_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n\n{"body": "b"}\n')
    with pytest.raises(KeyError, match="text") as caught:
        create_tokenize_and_index_jsonl_text_func(letters, 0, str(tmp_path))()
    assert caught.value.__notes__ == [f"at {tmp_path}/a.jsonl, line 3"]

    def fails(text: str) -> list[int]:
        raise RuntimeError("mine")

    path.write_text('{"text": "a"}\n')
    indexer = create_tokenize_and_index_jsonl_text_func(
        fails, 0, input_file_paths=[str(path)], output_base_path=str(tmp_path)
    )
    with pytest.raises(RuntimeError, match="mine") as failed:
        indexer()
    assert failed.value.__notes__ == [f"at {tmp_path}/a.jsonl, line 1"]
    assert contents(tmp_path) == ["a.jsonl"]


class Positions:
    """Numbers of tokens in their part."""

    dtype = np.dtype(np.int32)

    def generate(self, part_type: str, num_tokens: int, *, part_tokens: list[int] | None = None) -> list[int]:
        assert part_tokens is not None and type(part_tokens) is list and len(part_tokens) == num_tokens
        return list(range(num_tokens))

    def generate_for_eos(self) -> int:
        return -1


def two_parts(line: bytes) -> list[Part]:
    text = json.loads(line)["text"]
    return [Part("prompt", text[:1]), Part("response", text[1:])]


def bytes_of(text: str) -> Any:
    return np.frombuffer(text.encode(), np.uint8)


def test_arrays_of_users_follow_the_tokens(tmp_path: Path) -> None:
    write_texts(tmp_path / "a.jsonl", "abc", "d")
    generators: Any = {"positions": Positions(), "loss_mask": LossMaskGenerator(mask_eos=True)}
    create_tokenize_and_index_with_aux_func(two_parts, bytes_of, 0, generators, str(tmp_path), sample_size=3)()
    found = TokensWithAuxDataset.create_from_index_on_filesystem(str(tmp_path))
    assert [{name: one.tolist() for name, one in some.items()} for some in found] == [
        {"tokens": [97, 98, 99], "loss_mask": [1, 0, 0], "positions": [0, 0, 1]},
        {"tokens": [0, 100, 0], "loss_mask": [1, 1, 1], "positions": [-1, 0, -1]},
    ]
    assert list(found[0]) == ["tokens", "loss_mask", "positions"]
    assert sx.open(str(tmp_path))[1]["positions"].tolist() == [-1, 0, -1]


class DocumentNumbers:
    """Numbers of documents: a generator with a state, which the end of a document changes."""

    dtype = np.dtype(np.int32)

    def __init__(self) -> None:
        self.number, self.calls = 0, list[str]()

    def generate(self, part_type: str, num_tokens: int, *, part_tokens: list[int] | None = None) -> list[int]:
        self.calls.append(part_type)
        return [self.number] * num_tokens

    def generate_for_eos(self) -> int:
        self.calls.append("end")
        self.number += 1
        return self.number - 1


class Weight(Positions):
    """The weight of the document that was parsed last."""

    now = 0

    def parts(self, line: bytes) -> list[Part]:
        self.now = len(json.loads(line)["text"])
        return two_parts(line)

    def generate(self, part_type: str, num_tokens: int, *, part_tokens: list[int] | None = None) -> list[int]:
        return [self.now] * num_tokens

    def generate_for_eos(self) -> int:
        return self.now


def test_generators_of_users_are_called_part_by_part_and_after_each_document(tmp_path: Path) -> None:
    write_texts(tmp_path / "a.jsonl", "abc", "", "de")
    numbers, weight = DocumentNumbers(), Weight()
    generators: Any = {"weight": weight, "numbers": numbers}
    create_tokenize_and_index_with_aux_func(weight.parts, letters, 0, generators, str(tmp_path), sample_size=8)()
    (found,) = TokensWithAuxDataset.create_from_index_on_filesystem(str(tmp_path))
    assert found["numbers"].tolist() == [0, 0, 0, 0, 1, 2, 2, 2]
    assert found["weight"].tolist() == [3, 3, 3, 3, 0, 2, 2, 2]
    assert numbers.calls == ["prompt", "response", "end"] * 3


def test_functions_of_users_are_called_line_by_line(tmp_path: Path) -> None:
    calls: list[str] = []

    def text(line: bytes) -> str:
        calls.append("text")
        return get_text_from_jsonl(line)

    def tokens(text: str) -> list[int]:
        calls.append("tokens")
        return letters(text)

    write_texts(tmp_path / "a.jsonl", "a", "b")
    create_tokenize_and_index_jsonl_text_func(tokens, 0, str(tmp_path), process_text_line_func=text)()
    assert calls == ["text", "tokens"] * 2


def test_an_array_of_a_user_cannot_be_called_tokens(tmp_path: Path) -> None:
    generators: Any = {"tokens": Positions()}
    with pytest.raises(ValueError, match='another name than "tokens"'):
        create_tokenize_and_index_with_aux_func(two_parts, letters, 0, generators, str(tmp_path))


def test_tokens_of_another_byte_order(tmp_path: Path) -> None:
    write_texts(tmp_path / "a.jsonl", "ab")
    create_tokenize_and_index_jsonl_text_func(letters, 0, str(tmp_path), token_dtype=">u2")()
    assert tokens_of(tmp_path, ">u2") == [[97, 98]]
    assert (tmp_path / "tokenized-samples/a-tokenized-samples.bin").read_bytes() == b"\0a\0b"


def test_values_that_do_not_fit_the_tokens_raise(tmp_path: Path) -> None:
    class TooFew(Positions):
        def generate(self, part_type: str, num_tokens: int, *, part_tokens: list[int] | None = None) -> list[int]:
            return [1]

    write_texts(tmp_path / "a.jsonl", "a", "abc")
    generators: Any = {"positions": TooFew()}
    with pytest.raises(SchemaError, match="expected 0 values of positions, one for each token, got 1") as caught:
        create_tokenize_and_index_with_aux_func(two_parts, letters, 0, generators, str(tmp_path), sample_size=2)()
    assert caught.value.__notes__ == [f"at {tmp_path}/a.jsonl, line 1"]


def test_tokenizers_of_transformers_encode_many_lines_at_once(tmp_path: Path) -> None:
    tokenizers: Any = pytest.importorskip("tokenizers")
    transformers: Any = pytest.importorskip("transformers")
    words = {word: k for k, word in enumerate(["<unk>", "<s>", "one", "two", "three"])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=model, bos_token="<s>", unk_token="<unk>")
    write_texts(tmp_path / "a.jsonl", "one two", "", "three one four")
    create_tokenize_and_index_jsonl_text_func(tokenizer.encode, 0, str(tmp_path))()
    assert tokens_of(tmp_path) == [tokenizer.encode(text) for text in ("one two", "", "three one four")]
    assert tokens_of(tmp_path)[0] == [1, 2, 3]


def test_generators_work_without_an_indexer(tmp_path: Path) -> None:
    generator = TokenizedSampleGenerator(lambda line: line.decode().strip(), letters, 0, sample_size=3)
    for name, last in (("a.txt", False), ("b.txt", True)):
        generator.prepare(str(tmp_path / name))
        samples = generator.create_samples(b"abcd\n")
        path = str(tmp_path / "tokenized-samples" / f"{name[0]}-tokenized-samples.bin")
        tokens = [ord("d"), 0, ord("a")] if last else [*b"abc"]
        assert samples[0] == SampleData(np.array(tokens, "<u2").tobytes(), path)
        assert not os.path.exists(path)
        generator.finish(is_last_file=last)
        assert os.path.getsize(path) == 6 * len(samples)
    with pytest.raises(FileExistsError):
        TokenizedSampleGenerator(bytes.decode, letters, 0).prepare(str(tmp_path / "a.txt"))
    assert len(contents(tmp_path)) == 3


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_compressed_inputs_are_tokenized(tmp_path: Path, kind: str) -> None:
    lines = b'\n{"text": "ab"}\r\n\n{"text": "c"}\n{}'
    path = tmp_path / f"a.jsonl.{'gz' if kind == 'gzip' else 'zst'}"
    with pa.output_stream(str(path), compression=kind) as out:
        out.write(lines)
    make = partial(create_tokenize_and_index_jsonl_text_func, letters, 0, input_file_paths=[str(path)])
    with pytest.raises(KeyError) as caught:
        make(output_base_path=str(tmp_path))()
    assert caught.value.__notes__ == [f"at {path}, byte {lines.index(b'{}')} of its content"]

    def text(line: bytes) -> str:
        return str(json.loads(line).get("text", ""))

    make(output_base_path=str(tmp_path), process_text_line_func=text)()
    assert tokens_of(tmp_path) == [[97, 98], [99], []]
    with pytest.raises(ValueError, match="decompress it with unzip_files"):
        FileTextLinesIndexer([str(path)], IndexStore(str(tmp_path / "lines")))()


# -- runs that end early ------------------------------------------------------------------------------------------


def test_a_run_that_fails_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    write_texts(tmp_path / "a.jsonl", *"abc")
    write_texts(tmp_path / "b.jsonl", "fail")
    fails = True

    def tokenizer(text: str) -> list[int]:
        if text == "fail" and fails:
            raise RuntimeError("mine")
        return letters(text)

    indexer = create_tokenize_and_index_jsonl_text_func(tokenizer, 0, str(tmp_path), sample_size=5)
    with pytest.raises(RuntimeError, match="mine"):
        indexer()
    assert contents(tmp_path) == ["a.jsonl", "b.jsonl"]
    fails = False
    indexer()
    assert tokens_of(tmp_path) == [[97, 0, 98, 0, 99], [0, *b"fail"]]
    with pytest.raises(ValueError, match="call clear"):
        indexer()
    IndexStore(str(tmp_path)).clear()
    with pytest.raises(FileExistsError, match="remove it first"):
        indexer()
    assert not (tmp_path / "index").exists()


KILLED = """
import os, signal, sys
from shardex.files import append_together
from shardex.compat.data_forager.indexers.tokenization_indexer import create_tokenize_and_index_jsonl_text_func as make

def tokenizer(text):
    if text == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
    return list(text.encode())

link = append_together.link_or_rename
def link_some(source, target):
    if sys.argv[2] in target:
        os.kill(os.getpid(), signal.SIGKILL)
    link(source, target)
append_together.link_or_rename = link_some
make(tokenizer, 0, sys.argv[1], sample_size=2)()
"""


@pytest.mark.parametrize("when", ["b", "a-tokenized", "file_location"])
def test_a_run_that_is_killed_can_be_repeated(tmp_path: Path, when: str) -> None:
    write_texts(tmp_path / "a.jsonl", "a")
    write_texts(tmp_path / "b.jsonl", "b")
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), when], check=False)
    assert done.returncode == -signal.SIGKILL
    create_tokenize_and_index_jsonl_text_func(letters, 0, str(tmp_path), sample_size=2)()
    assert tokens_of(tmp_path) == [[97, 0], [98, 0]]


# -- stores and generators of users -------------------------------------------------------------------------------


class ListStore:
    """A store of a user, with the methods of 0.1.4."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def init_store(self) -> None:
        self.calls.append("init")

    def add_sample(self, file_location: str, byte_offset: int, num_bytes: int) -> None:
        self.calls.append((os.path.basename(file_location), byte_offset, num_bytes))

    def close(self) -> None:
        self.calls.append("close")

    def load(self) -> SampleIndex:
        raise NotImplementedError

    def exists(self) -> bool:
        return False

    def clear(self) -> None:
        self.calls.clear()


class Halves:
    """A generator of a user, with the methods of 0.1.4: two samples of each line."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, list[Any]()

    def prepare(self, text_file_path: str) -> None:
        self.calls.append(os.path.basename(text_file_path))
        self.path = self.folder / "halves.bin"

    def create_samples(self, text_line: bytes) -> list[SampleData]:
        middle = len(text_line) // 2
        with open(self.path, "ab") as file:
            file.write(text_line)
        return [SampleData(text_line[:middle], str(self.path)), SampleData(text_line[middle:], str(self.path))]

    def finish(self, is_last_file: bool) -> None:
        self.calls.append(is_last_file)


def test_stores_of_users_get_every_sample(tmp_path: Path) -> None:
    write_texts(tmp_path / "a.jsonl", "x", "yy")
    store, tokens = ListStore(), ListStore()
    FileTextLinesIndexer([str(tmp_path / "a.jsonl")], store, NOOPSampleGenerator())()
    assert store.calls == ["init", ("a.jsonl", 0, 14), ("a.jsonl", 14, 15), "close"]
    create_tokenize_and_index_jsonl_text_func(letters, 0, str(tmp_path), index_store=tokens)()
    name = "a-tokenized-samples.bin"
    assert tokens.calls == ["init", (name, 0, 2), (name, 2, 4), "close"]
    assert (tmp_path / "tokenized-samples" / name).stat().st_size == 6


def test_generators_of_users_are_called_for_every_line(tmp_path: Path) -> None:
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path in paths:
        path.write_bytes(b"12345\n\n")
    generator, store = Halves(tmp_path), ListStore()
    FileTextLinesIndexer([str(path) for path in paths], store, generator)()  # type: ignore[arg-type]
    assert generator.calls == ["a.txt", False, "b.txt", True]
    sizes = [3, 3, 0, 1, 3, 3, 0, 1]
    begins = np.cumsum([0, *sizes[:-1]]).tolist()
    assert store.calls[1:-1] == [("halves.bin", begin, size) for begin, size in zip(begins, sizes, strict=True)]


class Lines:
    """A generator of a user: the lines of the input where they are, as `NOOPSampleGenerator`."""

    def prepare(self, text_file_path: str) -> None:
        self.path = text_file_path

    def create_samples(self, text_line: bytes) -> list[SampleData]:
        return [SampleData(text_line, self.path)]

    def finish(self, is_last_file: bool) -> None:
        pass


class SameLines(NOOPSampleGenerator):
    """A generator of a user that inherits one."""


@pytest.mark.parametrize("kind", [Lines, SameLines])
def test_generators_of_users_get_all_bytes_of_a_file(tmp_path: Path, kind: Any) -> None:
    path, store = tmp_path / "a.jsonl", ListStore()
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n   \n{"a": 2}')
    FileTextLinesIndexer([str(path)], store, kind())()
    found = [path.read_bytes()[begin : begin + size] for _, begin, size in store.calls[1:-1]]
    assert found == [b'\xef\xbb\xbf{"a": 1}\r\n', b"\n", b"   \n", b'{"a": 2}']


class LongSamples(IndexStore):
    """A store of a user that inherits one: short samples are left out."""

    def add_sample(self, file_location: str, byte_offset: int, num_bytes: int) -> None:
        if num_bytes > 14:
            super().add_sample(file_location, byte_offset, num_bytes)


def test_stores_of_users_that_inherit_one_get_every_sample(tmp_path: Path) -> None:
    write_texts(tmp_path / "a.jsonl", "x", "y" * 20)
    FileTextLinesIndexer([str(tmp_path / "a.jsonl")], LongSamples(str(tmp_path)))()
    assert [one["text"] for one in JsonlDataset.create_from_index_on_filesystem(str(tmp_path))] == ["y" * 20]
    store = LongSamples(str(tmp_path), "index-of-tokens")
    create_tokenize_and_index_jsonl_text_func(letters, 0, str(tmp_path), index_store=store)()
    assert [one.num_bytes for one in map(store.load().__getitem__, range(len(store.load())))] == [40]
