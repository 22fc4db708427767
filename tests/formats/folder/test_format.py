"""Folders of media files: class folders, metadata, captions, and what is wrong with them."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.errors import (
    ArgumentError,
    DuplicateKeyError,
    FormatError,
    NotFoundError,
    SchemaError,
    ShardexError,
    StaleIndexError,
    TruncatedShardError,
    UnknownFormatError,
    UnknownKeyError,
)
from shardex.media import encode_image
from shardex.rows import AbstractRows
from shardex.sources import place_of


def png(value: int) -> bytes:
    """An image of one colour."""
    return encode_image(np.full((2, 3, 3), value, np.uint8))


def make(folder: Path, *names: str) -> Path:
    """Write an image under each name; their colours are numbered from 0."""
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(number))
    return folder


def stored(path: Any, **options: Any) -> AbstractRows:
    """The rows of a folder, with the bytes of files."""
    rows: Any = sx.open(path, **options).rows
    return getattr(rows, "stored", rows)  # type: ignore[no-any-return]


def sample(rows: AbstractRows, row: int) -> dict[str, Any]:
    return rows.sample(row)


def test_class_folders(tmp_path: Path) -> None:
    rows = stored(make(tmp_path, "dog/2.png", "cat/10.png", "cat/2.PNG", "dog/deeper/1.png"))
    assert str(rows.features) == "image image, label class of 2, path text"
    assert rows.features["label"] == sx.ClassLabel(("cat", "dog"))
    assert sample(rows, 1) == {"image": png(1), "label": 0, "path": "cat/10.png"}
    columns = rows.read(np.arange(4))
    assert columns["path"] == ["cat/2.PNG", "cat/10.png", "dog/2.png", "dog/deeper/1.png"]
    assert columns["image"] == [png(2), png(1), png(0), png(3)]
    assert columns["label"].tolist() == [0, 0, 1, 1]


def test_a_folder_without_class_folders_has_no_labels(tmp_path: Path) -> None:
    assert list(stored(make(tmp_path / "a", "1.png", "2.png")).features) == ["image", "path"]
    assert list(stored(make(tmp_path / "b", "images/1.png", "images/2.png")).features) == ["image", "path"]


def test_labels_by_other_folders(tmp_path: Path) -> None:
    make(tmp_path, "pets/cat/1.png", "pets/dog/1.png", "wild/cat/1.png")

    def classes(**options: Any) -> tuple[Any, list[int]]:
        rows = stored(tmp_path, **options)
        return getattr(rows.features["label"], "names", None), rows.read(np.arange(3), ["label"])["label"].tolist()

    assert classes() == classes(label="top") == (("pets", "wild"), [0, 0, 1])
    assert classes(label="parent") == (("cat", "dog"), [0, 1, 0])
    assert classes(label="path") == (("pets/cat", "pets/dog", "wild/cat"), [0, 1, 2])
    assert classes(label="parent", classes=["fox", "dog", "cat"]) == (("fox", "dog", "cat"), [2, 1, 2])
    assert "label" not in stored(tmp_path, label=False).features
    with pytest.raises(SchemaError, match=r"cat.1\.png: expected one of the classes dog, got the folder 'cat'; add"):
        sx.open(tmp_path, label="parent", classes=["dog"])
    with pytest.raises(ArgumentError, match="expected label to be one of top, parent, path, False or None, got 'last'"):
        sx.open(tmp_path, label="last")
    with pytest.raises(ArgumentError, match="expected a list of names for the option classes, got 'dog'"):
        sx.open(tmp_path, label="parent", classes="dog")


def test_files_outside_of_class_folders_raise(tmp_path: Path) -> None:
    make(tmp_path, "cat/1.png", "dog/1.png", "logo.png")
    with pytest.raises(UnknownFormatError, match=r"got 1 of 3 outside of them, such as logo\.png; open"):
        sx.open(tmp_path)
    assert len(stored(tmp_path, label=False)) == 3
    assert list(stored(f"{tmp_path}/*/*").features) == ["image", "label", "path"]


@pytest.mark.parametrize("masks", ["masks", "labels", "Annotations"])
def test_images_and_their_masks_are_no_classes(tmp_path: Path, masks: str) -> None:
    make(tmp_path / "a", "images/1.png", f"{masks}/1.png")
    make(tmp_path / "splits", *(f"{one}/{kind}/1.png" for one in ("train", "val") for kind in ("images", masks)))
    make(tmp_path / "three", "images/1.png", f"{masks}/1.png", "paintings/1.png")
    for path, read in ((tmp_path / "a", sx.open), (tmp_path / "splits", sx.load_dataset)):
        with pytest.raises(UnknownFormatError, match=r"expected folders of classes, got .*images.*; open each of them"):
            read(path)
    assert len(stored(tmp_path / "a", label=False)) == 2
    assert stored(tmp_path / "a", label="top").features["label"] == sx.ClassLabel(sorted(["images", masks]))
    assert stored(tmp_path / "three").features["label"] == sx.ClassLabel(sorted(["images", masks, "paintings"]))


def test_a_file_is_found_by_its_path(tmp_path: Path) -> None:
    ds = sx.open(make(tmp_path, "cat/1.png", "dog/1.png", "dog/ü 2.png")).select("path", "label")
    assert ds.get("dog/ü 2.png") == {"path": "dog/ü 2.png", "label": 1}
    assert ds.rows_of(["dog/1.png", "cat/1.png"]).tolist() == [1, 0]
    with pytest.raises(UnknownKeyError, match=r"expected the path of a file in the folder, got 'cat/2\.png'"):
        ds.get("cat/2.png")


def test_hidden_and_other_files_are_left_out(tmp_path: Path) -> None:
    make(tmp_path, "_cats/_MG_1.png", "dogs/1.png", "dogs/._1.png", ".thumbs/1.png", "__MACOSX/dogs/1.png")
    for name in ("README.md", "dogs/Thumbs.db", ".DS_Store", "LICENSE", "classes.txt", "sums.md5"):
        (tmp_path / name).write_bytes(b"text")
    rows = stored(tmp_path)
    assert rows.read(np.arange(len(rows)), ["path"])["path"] == ["_cats/_MG_1.png", "dogs/1.png"]
    assert list(rows.features) == ["image", "label", "path"]


def test_shards_beside_media_are_read_as_before(tmp_path: Path) -> None:
    make(tmp_path, "figure.png")
    sx.write(tmp_path / "data", [{"x": 1}], format="jsonl")
    assert sx.open(tmp_path)[0] == {"x": 1}


@pytest.mark.parametrize("name", ["LOC_val_solution.csv", "boxes.xml", "cat/1.xml", "list.txt", "all.json"])
def test_other_files_beside_media_are_named(tmp_path: Path, name: str) -> None:
    make(tmp_path, "cat/1.png", "dog/2.png")
    (tmp_path / name).write_text("ImageId,PredictionString\n1,a\n")
    kind = Path(name).suffix
    for opened in (sx.open, sx.load_dataset):
        with pytest.raises(UnknownFormatError, match=rf'3 files \(2 \.png, 1 \{kind}\); .* format="folder", or name'):
            opened(tmp_path)
    assert str(stored(tmp_path, format="folder").features) == "image image, label class of 2, path text"
    assert sx.load_dataset(tmp_path, format="folder").num_rows == {"train": 2}


@pytest.mark.parametrize(
    ("names", "table", "format"),
    [
        (["cat/1.png", "dog/2.png"], "data.jsonl", "jsonl"),
        (["cat/1.png", "dog/2.png"], "metadata.parquet", "parquet"),
        (["images/1.png", "images/2.png"], "labels.csv", "csv"),
        ([f"{k}.png" for k in range(11)], "data.jsonl", "jsonl"),
    ],
)
def test_media_and_shards_that_both_may_be_the_samples_raise(
    tmp_path: Path, names: list[str], table: str, format: str
) -> None:
    make(tmp_path / "d", *names)
    sx.write(tmp_path / "table", [{"x": 1}], format=format)
    next((tmp_path / "table").glob(f"*.{format}")).rename(tmp_path / "d" / table)
    for opened in (sx.open, sx.load_dataset):
        with pytest.raises(UnknownFormatError, match=rf'; choose .* format="{format}" or format="folder"'):
            opened(tmp_path / "d")
    assert len(stored(tmp_path / "d", format="folder")) == len(names)
    assert sx.open(tmp_path / "d", format=format)[0] == {"x": 1}


def test_kinds(tmp_path: Path) -> None:
    make(tmp_path, "a/1.png", "a/2.png")
    (tmp_path / "a" / "1.mp3").write_bytes(b"ID3")
    seen = r'got 2 of image \(such as a/1\.png\) and 1 of audio \(.*\); choose with kind="image", or name the files by'
    with pytest.raises(UnknownFormatError, match=seen):
        sx.open(tmp_path)
    assert len(stored(tmp_path, kind="image")) == 2
    assert str(stored(tmp_path, kind="audio").features) == "audio audio, path text"
    assert len(stored(f"{tmp_path}/**/*.png")) == 2
    with pytest.raises(UnknownFormatError, match=r"expected media files \(.*\.mp4, .*\), got 2 of image"):
        sx.open(tmp_path, kind="video")
    with pytest.raises(ArgumentError, match="expected kind to be one of image, audio, video, got 'picture'"):
        sx.open(tmp_path, kind="picture")


def test_captions(tmp_path: Path) -> None:
    make(tmp_path, "1.png", "2.png", "3.png")
    (tmp_path / "1.txt").write_bytes("\ufeffein Käfer".encode())
    (tmp_path / "3.txt").write_bytes(b"")
    (tmp_path / "2.json").write_text('{"box": [1, 2]}')
    rows = stored(tmp_path)
    assert str(rows.features) == "image image, path text, json json or none, text text or none"
    assert rows.read(np.arange(3), ["text"])["text"] == ["ein Käfer", None, ""]
    assert sample(rows, 1) == {"image": png(1), "path": "2.png", "json": {"box": [1, 2]}, "text": None}
    assert rows.present("text").tolist() == [True, False, True]
    (tmp_path / "2.txt").write_bytes(b"\xff\xff")
    (tmp_path / "2.json").write_bytes(b"{")
    for name, message in (("text", r"2\.txt: expected UTF-8, got b'\\xff\\xff'"), ("json", r"2\.json: expected JSON")):
        with pytest.raises(FormatError, match=message):
            stored(tmp_path).read(np.arange(3), [name])


# -- metadata -------------------------------------------------------------------------------------------------------


def test_metadata_csv(tmp_path: Path) -> None:
    make(tmp_path, "cat/1.png", "dog/1.png")
    (tmp_path / "metadata.csv").write_text("file_name,score,text\ndog/1.png,2,a dog\ncat/1.png,1.5,\n")
    rows = stored(tmp_path)
    assert str(rows.features) == "image image, label class of 2, path text, score float64, text text or none"
    assert rows.read(np.array([1, 0]), ["text", "score"]).to_samples() == [
        {"text": "a dog", "score": 2.0},
        {"text": None, "score": 1.5},
    ]
    assert rows.present("text").tolist() == [False, True]


def test_metadata_may_spell_accents_in_another_way(tmp_path: Path) -> None:
    make(tmp_path, "e\u0301.png", "\u00fc.png")
    (tmp_path / "metadata.csv").write_text("file_name,n\n\u00e9.png,1\nu\u0308.png,2\n", "utf-8")
    assert stored(tmp_path).read(np.arange(2), ["path", "n"]).to_samples() == [
        {"path": "e\u0301.png", "n": 1},
        {"path": "\u00fc.png", "n": 2},
    ]


def test_metadata_in_several_folders(tmp_path: Path) -> None:
    make(tmp_path, "a/1.png", "a/in/2.png", "b/1.png")
    lines: dict[str, list[Any]] = {
        "a": [{"file_name": "in/2.png", "n": 2}, {"file_name": "./1.png", "n": 1}],
        "b": [{"file_name": "1.png", "n": 3, "boxes": [[1, 2]], "label": "x"}],
    }
    for folder, some in lines.items():
        (tmp_path / folder / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in some))
    rows = stored(tmp_path)
    assert str(rows.features) == "image image, path text, n int64, boxes json or none, label text or none"
    assert rows.read(np.arange(3), ["n"])["n"].tolist() == [1, 2, 3]
    assert sample(rows, 2) == {"image": png(2), "path": "b/1.png", "n": 3, "boxes": [[1, 2]], "label": "x"}


def test_rows_without_files_and_files_without_rows(tmp_path: Path) -> None:
    make(tmp_path, "1.png", "2.png")
    (tmp_path / "metadata.csv").write_text("file_name,n\n2.png,2\n3.png,3\n4.png,4\n")
    problem = (
        r"got 2 of 3 rows without a file: 3\.png \(.*metadata\.csv, line 3\), 4\.png \(.*line 4\) and "
        r"1 of 2 files without a row: 1\.png"
    )
    with pytest.raises(FormatError, match=problem + '; open with unmatched="skip"'):
        sx.open(tmp_path)
    with pytest.warns(UserWarning, match=problem + "; they are left out"):
        rows = stored(tmp_path, unmatched="skip")
    assert len(rows) == 1 and sample(rows, 0) == {"image": png(1), "path": "2.png", "n": 2}
    with pytest.raises(ArgumentError, match="expected unmatched to be one of raise, skip, got 'keep'"):
        sx.open(tmp_path, unmatched="keep")


@pytest.mark.parametrize(
    ("table", "text", "error", "message"),
    [
        (
            "csv",
            "file_name,n\n1.png,1\n./1.png,2\n",
            DuplicateKeyError,
            r"line 3: expected each file once, got \./1\.png",
        ),
        ("csv", "file_name,n\n1.png,1\n,2\n", FormatError, r"line 3: expected the path of a file, got None"),
        ("jsonl", '{"file_name": 1}\n', FormatError, r"line 1: expected the path of a file, got 1"),
        (
            "csv",
            "file_name,path\n1.png,1\n",
            SchemaError,
            "expected columns of metadata other than image, path, got 'path'",
        ),
        (
            "csv",
            "n,file_names\n1,1.png\n",
            FormatError,
            "expected a column file_name with the paths of files, got n, file",
        ),
        ("jsonl", '{"file_name": "1.png"}\n{"file_name"\n', FormatError, "line 2, column"),
        ("csv", "file_name\n../1.png\n", FormatError, r"1 of 1 rows without a file: \.\./1\.png"),
    ],
)
def test_wrong_metadata(tmp_path: Path, table: str, text: str, error: Any, message: str) -> None:
    make(tmp_path, "1.png")
    (tmp_path / f"metadata.{table}").write_text(text)
    with pytest.raises(error, match=message):
        sx.open(tmp_path)


def test_tables_of_two_formats_raise(tmp_path: Path) -> None:
    make(tmp_path, "1.png")
    (tmp_path / "metadata.csv").write_text("file_name\n1.png\n")
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "1.png"}')
    with pytest.raises(UnknownFormatError, match=r"expected tables of one format, got metadata\.csv, metadata\.jsonl"):
        sx.open(tmp_path)


@pytest.mark.parametrize("text", ["n\n1\n", ""])
def test_metadata_that_names_no_files_does_not_hide_media(tmp_path: Path, text: str) -> None:
    make(tmp_path, "1.png")
    (tmp_path / "metadata.csv").write_text(text)
    with pytest.raises(FormatError, match=r"metadata\.csv: expected a column file_name .* rename .* format=\"csv\""):
        sx.open(tmp_path)
    assert len(sx.open(tmp_path, format="csv")) == (text != "")


# -- damaged and changed folders ------------------------------------------------------------------------------------


def test_folders_without_media(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormatError, match="got an empty folder; check the path"):
        sx.open(tmp_path)
    with pytest.raises(UnknownFormatError, match=r"expected media files \(.*\), got none"):
        sx.open(tmp_path, format="folder")
    (tmp_path / "a.xml").write_bytes(b"<a/>")
    (tmp_path / "b.pdf").write_bytes(b"%PDF")
    with pytest.raises(
        UnknownFormatError, match=r"got 2 files \(1 \.xml, 1 \.pdf\), .*; name the files to read"
    ) as seen:
        sx.open(tmp_path)
    assert "format=" not in str(seen.value)


def test_an_empty_file_raises_when_it_is_read(tmp_path: Path) -> None:
    make(tmp_path, "1.png", "2.png")
    (tmp_path / "2.png").write_bytes(b"")
    rows = stored(tmp_path)
    assert rows.read(np.arange(2), ["path"])["path"] == ["1.png", "2.png"]
    with pytest.raises(
        FormatError, match=r"2\.png: expected image, got an empty file; remove it - at sample 1, field image"
    ):
        rows.read(np.arange(2))
    (problem,) = sx.verify(tmp_path)
    assert problem.samples == range(1, 2) and problem.file == "2.png"


def test_files_that_change_after_the_open_raise(tmp_path: Path) -> None:
    make(tmp_path, "1.png", "2.png", "3.png", "4.png")
    rows = stored(tmp_path)
    (tmp_path / "2.png").unlink()
    (tmp_path / "3.png").write_bytes(b"short")
    (tmp_path / "4.png").write_bytes(png(3) + b"more")
    assert sample(rows, 0)["image"] == png(0)
    for row, error, message in (
        (1, NotFoundError, r"2\.png"),
        (2, TruncatedShardError, r"3\.png: expected \d+ bytes as when it was opened, got 5"),
        (3, StaleIndexError, r"4\.png: expected the file as when it was opened, it has changed since"),
    ):
        with pytest.raises(error, match=message):
            rows.read(np.array([row]), ["image"])
    assert rows.read(np.arange(4), ["path"])["path"] == ["1.png", "2.png", "3.png", "4.png"]


def test_a_pickle_opens_the_same_files(tmp_path: Path) -> None:
    make(tmp_path, "a/1.png", "b/2.png")
    ds = sx.open(tmp_path).select("path")
    assert list(pickle.loads(pickle.dumps(ds))) == list(ds)
    assert pickle.loads(pickle.dumps(ds)).fingerprint == ds.fingerprint == sx.open(tmp_path).fingerprint
    again = pickle.dumps(ds)
    os.utime(tmp_path / "a" / "1.png", (1, 1))
    with pytest.raises(StaleIndexError, match="it has changed since"):
        pickle.loads(again)


def test_a_broken_link_is_named(tmp_path: Path) -> None:
    make(tmp_path, "1.png")
    (tmp_path / "2.png").symlink_to(tmp_path / "nothing.png")
    with pytest.raises(NotFoundError, match=r"2\.png"):
        sx.open(tmp_path)


def test_linked_folders_are_read(tmp_path: Path) -> None:
    make(tmp_path / "real", "cat/1.png", "dog/1.png", "fox/1.png")
    folder = make(tmp_path / "some", "cat/1.png")
    (folder / "dog").symlink_to(tmp_path / "real" / "dog")
    (folder / "loop").symlink_to(folder)
    assert stored(folder).read(np.arange(2), ["path"])["path"] == ["cat/1.png", "dog/1.png"]
    shutil.rmtree(folder / "cat")
    (folder / "fox").symlink_to(tmp_path / "real" / "fox")
    assert stored(folder).read(np.arange(2), ["path", "label"]).to_samples() == [
        {"path": "dog/1.png", "label": 0},
        {"path": "fox/1.png", "label": 1},
    ]


def test_names_that_are_no_utf8_raise(tmp_path: Path) -> None:
    make(tmp_path, "1.png", "ü.png")
    Path(os.path.join(tmp_path, os.fsdecode(b"\xff.png"))).write_bytes(png(1))
    with pytest.raises(FormatError, match=r"expected names of files in UTF-8, got b'\\xff\.png'; rename the file"):
        sx.open(tmp_path)
    assert len(stored(f"{tmp_path}/[1ü].png")) == 2


def test_single_files_and_lists(tmp_path: Path) -> None:
    make(tmp_path, "a/1.png", "b/2.png", "b/3.png")
    assert sample(stored(tmp_path / "b" / "3.png"), 0) == {"image": png(2), "path": "3.png"}
    rows = stored([tmp_path / "b" / "3.png", tmp_path / "a"])
    assert rows.read(np.arange(2), ["path", "label"]).to_samples() == [
        {"path": "b/3.png", "label": 1},
        {"path": "a/1.png", "label": 0},
    ]


def test_only_the_files_of_the_fields_are_read(tmp_path: Path) -> None:
    make(tmp_path, "1.png", "2.png")
    (tmp_path / "1.txt").write_text("one")
    rows = stored(tmp_path)
    (tmp_path / "1.png").unlink()
    (tmp_path / "2.png").unlink()
    assert rows.read(np.arange(2), ["text", "path"]).to_samples() == [
        {"text": "one", "path": "1.png"},
        {"text": None, "path": "2.png"},
    ]
    assert rows.present("image").all()


def test_a_schema_changes_features(tmp_path: Path) -> None:
    make(tmp_path, "a/1.png", "b/2.png")
    (tmp_path / "metadata.csv").write_text("file_name,n,m\na/1.png,1,1\nb/2.png,2,2\n")
    rows = stored(tmp_path, schema={"image": bytes, "n": "int8"})
    assert str(rows.features) == "image bytes, label class of 2, path text, n int8, m int64"
    assert sample(rows, 1) == {"image": png(1), "label": 1, "path": "b/2.png", "n": 2, "m": 2}
    assert rows.read(np.arange(2), ["n"])["n"].dtype == np.int8
    with pytest.raises(SchemaError, match="expected fields out of image, path, got 'n'"):
        sx.open(tmp_path / "a", schema={"image": bytes, "n": int})
    with pytest.raises(SchemaError, match="expected image or bytes, got text - at field image"):
        sx.open(tmp_path, schema={"image": str})
    with pytest.raises(SchemaError, match="expected the classes a, b, got b, a - at field label; choose"):
        sx.open(tmp_path, schema={"label": sx.ClassLabel(("b", "a"))})


def test_a_zip_archive_of_class_folders(tmp_path: Path) -> None:
    make(tmp_path / "data", "cat/1.png", "dog/1.png")
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        for path in sorted((tmp_path / "data").rglob("*.png")):
            archive.write(path, path.relative_to(tmp_path).as_posix())
    rows = stored(tmp_path / "data.zip", cache=tmp_path / "cache")
    assert rows.read(np.arange(2), ["image", "label"]).to_samples() == [
        {"image": png(0), "label": 0},
        {"image": png(1), "label": 1},
    ]


def test_errors_of_other_processes_name_files(tmp_path: Path) -> None:
    make(tmp_path, "1.png")
    with pytest.raises(ShardexError):
        sx.open(tmp_path, format="folder", nothing=1)


# -- splits ---------------------------------------------------------------------------------------------------------


def test_folders_of_splits(tmp_path: Path) -> None:
    make(tmp_path, "train/cat/1.png", "train/train/2.png", "val/cat/1.png", "test/train/test_1.png", "test/val/2.png")
    with pytest.raises(UnknownFormatError, match=r'folders test, train, val; open one with sx\.open\(".*/test"'):
        sx.open(tmp_path)
    assert len(stored(tmp_path, label="parent")) == 5
    splits = sx.load_dataset(tmp_path)
    assert splits.num_rows == {"train": 2, "validation": 1, "test": 2}
    labels = {name: [(one.path, one.label) for one in ds.select("path", "label")] for name, ds in splits.items()}
    assert {ds.features["label"] for ds in splits.values()} == {sx.ClassLabel(("cat", "train", "val"))}
    assert labels == {
        "train": [("cat/1.png", 0), ("train/2.png", 1)],
        "validation": [("cat/1.png", 0)],
        "test": [("train/test_1.png", 1), ("val/2.png", 2)],
    }
    assert len(sx.load_dataset(tmp_path, split="validation")) == 1


def test_media_beside_folders_of_splits_raise(tmp_path: Path) -> None:
    make(tmp_path, "train/cat/1.png", "train/dog/2.png", "val/cat/3.png", "val/dog/4.png", "unlabeled/5.png", "6.png")
    seen = r"in the folders of splits \(train, val\), got others beside them \(6\.png, unlabeled/\); choose with"
    for opened in (sx.load_dataset, sx.open):
        with pytest.raises(UnknownFormatError, match=seen):
            opened(tmp_path)
    chosen = sx.load_dataset(tmp_path, data_files={"train": "train", "validation": "val"})
    assert chosen.num_rows == {"train": 2, "validation": 2}
    (tmp_path / "6.png").unlink()
    assert sx.open(tmp_path, label="top").features["label"] == sx.ClassLabel(("train", "unlabeled", "val"))
    (tmp_path / "unlabeled/5.png").rename(tmp_path / "unlabeled/sums.md5")
    assert sx.load_dataset(tmp_path).num_rows == {"train": 2, "validation": 2}


@pytest.mark.parametrize(
    "name", ["README.md", "LICENSE", "classes.txt", "data.yaml", "dataset_info.json", "train/LICENSE.txt"]
)
def test_other_files_beside_folders_of_splits_are_left_out(tmp_path: Path, name: str) -> None:
    make(tmp_path, "train/cat/1.png", "train/dog/2.png", "val/cat/3.png", "val/dog/4.png")
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("{}")
    splits = sx.load_dataset(tmp_path)
    assert splits.num_rows == {"train": 2, "validation": 2}
    assert {str(ds.features) for ds in splits.values()} == {"image image, label class of 2, path text"}


@pytest.mark.parametrize("name", ["labels.csv", "val.csv", "train/labels.csv"])
def test_csv_files_beside_splits_are_named(tmp_path: Path, name: str) -> None:
    make(tmp_path, "train/1.png", "train/2.png", "val/3.png", "val/4.png")
    (tmp_path / name).write_text("a,b\n1,2\n")
    with pytest.raises(UnknownFormatError, match=r"4 \.png, 1 \.csv"):
        sx.load_dataset(tmp_path)
    splits = sx.load_dataset(tmp_path, format="folder")
    assert splits.num_rows == {"train": 2, "validation": 2}
    assert {str(ds.features) for ds in splits.values()} == {"image image, path text"}


def test_a_split_without_classes(tmp_path: Path) -> None:
    make(tmp_path, "data/train/cat/1.png", "data/train/dog/2.png", "data/test/1.png")
    splits = sx.load_dataset(tmp_path)
    assert {name: list(ds.features) for name, ds in splits.items()} == {
        "train": ["image", "label", "path"],
        "test": ["image", "path"],
    }


def test_a_folder_without_splits_is_the_split_train(tmp_path: Path) -> None:
    make(tmp_path, "cat/1.png", "test/2.png")
    assert sx.load_dataset(tmp_path).num_rows == {"train": 2}


# -- writing --------------------------------------------------------------------------------------------------------


def test_written_folders(tmp_path: Path) -> None:
    schema = {"image": sx.Image(), "label": sx.ClassLabel(("cat", "dog")), "score": float, "text": str}
    samples = [{"image": png(k), "label": k % 2, "score": k / 2, "text": f"né {k}"} for k in range(4)]
    for workers in (None, 2):
        folder = tmp_path / f"out{workers}"
        sx.write(folder, samples, schema, format="folder", workers=workers)
        assert (folder / "dog" / "000000003.png").read_bytes() == png(3)
        rows = stored(folder)
        assert str(rows.features) == "image image, label class of 2, path text, score float64, text text"
        assert sorted(rows.read(np.arange(4), ["score"])["score"].tolist()) == [0, 0.5, 1, 1.5]
        copy = sx.write(tmp_path / f"copy{workers}", sx.open(folder), format="folder")
        assert copy.features == sx.open(folder).features
        assert (tmp_path / f"copy{workers}" / "cat" / "000000000.png").read_bytes() == png(0)
    sx.write(folder, samples[:2], schema, format="folder", mode="overwrite")
    assert len(stored(folder)) == 2


def test_metadata_without_any_file_raises(tmp_path: Path) -> None:
    (tmp_path / "metadata.csv").write_text("file_name\n1.png\n")
    with pytest.raises(FormatError, match=r"got 1 of 1 rows without a file: 1\.png"):
        sx.open(tmp_path, format="folder")


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    image = {"image": png(0)}

    def write(sample: dict[str, Any], schema: Any, **options: Any) -> None:
        sx.write(tmp_path / "d", [sample], schema, format="folder", **options)

    with pytest.raises(SchemaError, match="expected one field of media called image, audio or video, got x int64"):
        write({"x": 1}, {"x": int})
    with pytest.raises(SchemaError, match="expected names of classes in alphabetical order"):
        write({**image, "label": 0}, {"image": sx.Image(), "label": sx.ClassLabel(("b", "a"))})
    for path in ("../x.png", ".x.png", "a//x.png"):
        with pytest.raises(SchemaError, match="at sample 0"):
            write({**image, "path": path}, {"image": sx.Image(), "path": str})
    with pytest.raises(ArgumentError, match='got "append"'):
        write(image, {"image": sx.Image()}, mode="append")
    with pytest.warns(UserWarning, match=r"1 of 2 classes have no samples and so no folders \(b\)"):
        write({**image, "label": 0}, {"image": sx.Image(), "label": sx.ClassLabel(("a", "b"))})


# -- remote ---------------------------------------------------------------------------------------------------------


def test_a_folder_in_a_bucket_needs_no_request_for_each_file(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDEX_CACHE", str(tmp_path / "cache"))
    schema = {"image": sx.Image(), "label": sx.ClassLabel(("cat", "dog")), "n": int}
    sx.write(f"{bucket}/pets", [{"image": png(k), "label": k % 2, "n": k} for k in range(40)], schema, format="folder")
    rows: Any = stored(f"{bucket}/pets")
    traffic = rows.files.source.remote.traffic
    assert len(rows) == 40 and traffic.requests < 20
    before = traffic.requests
    assert rows.read(np.arange(40), ["image"])["image"] == [png(k) for k in [*range(0, 40, 2), *range(1, 40, 2)]]
    assert traffic.requests == before + 40
    assert sample(rows, 20) == {"image": png(1), "label": 1, "path": "dog/000000001.png", "n": 1}
    assert traffic.requests == before + 40
    ds = sx.open(f"{bucket}/pets")
    assert pickle.loads(pickle.dumps(ds)).fingerprint == ds.fingerprint


def test_splits_in_a_bucket(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDEX_CACHE", str(tmp_path / "cache"))
    place = place_of(f"{bucket}/pets")
    for number, name in enumerate(("train/cat/1.png", "train/dog/1.png", "val/dog/1.png")):
        place.put(name, png(number))
    splits = sx.load_dataset(f"{bucket}/pets")
    assert splits.num_rows == {"train": 2, "validation": 1}
    assert splits["validation"].stored[0] == {"image": png(2), "label": 1, "path": "dog/1.png"}
    with pytest.raises(UnknownFormatError, match=r'folders train, val; open one with sx\.open\("s3:.*/train"\)'):
        sx.open(f"{bucket}/pets")
