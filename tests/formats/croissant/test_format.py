"""Croissant files that others have written, and damaged or hostile ones."""

from __future__ import annotations

import gzip
import hashlib
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardex as sx
from shardex.errors import (
    AddressError,
    ArgumentError,
    ChecksumError,
    FormatError,
    NotFoundError,
    PathError,
    ShardexError,
    UnknownFormatError,
)
from shardex.files import find
from shardex.formats import recognise
from shardex.media import encode_image
from tests.servers.faulty import FaultyServer

CONTEXT = {"@vocab": "https://schema.org/", "cr": "http://mlcommons.org/croissant/", "sc": "https://schema.org/"}
Node = dict[str, Any]


def file_object(url: str, encoding: str = "text/csv", **more: Any) -> Node:
    return {"@type": "cr:FileObject", "@id": "file", "contentUrl": url, "encodingFormat": encoding, **more}


def file_set(includes: Any, encoding: str = "application/x-parquet", **more: Any) -> Node:
    return {"@type": "cr:FileSet", "@id": "file", "includes": includes, "encodingFormat": encoding, **more}


def field(name: str, kind: str | None = None, column: str | None = None, **more: Any) -> Node:
    source = {"fileObject": {"@id": "file"}, "extract": {"column": column or name}}
    return {"@type": "cr:Field", "@id": f"default/{name}", "dataType": kind, "source": source, **more}


def record_set(*fields: Node, name: str = "default") -> Node:
    return {"@type": "cr:RecordSet", "@id": name, "field": list(fields)}


def document(distribution: list[Node], *record_sets: Node) -> bytes:
    head = {"@context": CONTEXT, "@type": "sc:Dataset", "conformsTo": "http://mlcommons.org/croissant/1.1", "name": "d"}
    return json.dumps({**head, "distribution": distribution, "recordSet": list(record_sets)}).encode()


def written(folder: Path, distribution: list[Node], *record_sets: Node) -> Path:
    path = folder / "metadata.json"
    path.write_bytes(document(distribution, *record_sets))
    return path


def csv(folder: Path, text: str = "x,s\n1,a\n2,b\n") -> str:
    (folder / "a.csv").write_text(text)
    return hashlib.sha256(text.encode()).hexdigest()


X, S = field("x", "sc:Integer"), field("s", "sc:Text")


# -- what is read -------------------------------------------------------------------------------------------------


def test_file_of_hugging_face(tmp_path: Path) -> None:
    """A set of Parquet files in folders, pictures in structs, a record set of splits, fields without names."""
    for split, numbers in (("train", [0, 1]), ("test", [2])):
        (tmp_path / "mnist" / split).mkdir(parents=True)
        picture = {"bytes": encode_image(np.full((2, 3, 3), 7, np.uint8)), "path": "0.png"}
        table = pa.table({"image": [picture] * len(numbers), "label": numbers})
        pq.write_table(table, tmp_path / "mnist" / split / "0000.parquet")
    (tmp_path / "other.parquet").write_bytes(b"not one of these")
    image = field("image", "sc:ImageObject")
    image["source"]["transform"] = {"jsonPath": "bytes"}
    split_field = field("split", "sc:Text")
    split_field["source"] = {"fileSet": {"@id": "file"}, "extract": {"fileProperty": "fullpath"}}
    split_field |= {"references": {"field": {"@id": "splits/name"}}}
    splits = {"@type": "cr:RecordSet", "@id": "splits", "field": [], "data": [{"splits/name": "train"}]}
    files = file_set("mnist/*/*.parquet")
    path = written(tmp_path, [files], splits, record_set(split_field, image, field("label", "sc:Integer")))

    with pytest.raises(FormatError, match=r"at field split; choose fields without it with fields="):
        sx.open(path)
    ds = sx.open(path, fields=["image", "label"])
    assert ds["label"][:].tolist() == [2, 0, 1] and ds[0].image.shape == (2, 3, 3)
    assert str(ds.features) == "image image, label int64"
    assert [list(batch.label) for batch in sx.Loader(ds, batch_size=2)] == [[2, 0], [1]]


def test_fields_are_chosen_and_renamed(tmp_path: Path) -> None:
    csv(tmp_path, "x,s,unused\n1,a,-\n2,b,-\n3,,-\n")
    path = written(tmp_path, [file_object("a.csv")], record_set(field("text", "sc:Text", "s"), field("n", column="x")))
    ds = sx.open(path)
    assert list(ds) == [{"text": "a", "n": 1}, {"text": "b", "n": 2}, {"text": None, "n": 3}] and len(ds) == 3
    assert ds.where("n > 1")["text"][:] == ["b", None] and ds.sql("SELECT max(n) FROM ds")[0].to_pylist() == [3]
    assert ds[1:].select("n").to_arrow().to_pydict() == {"n": [2, 3]} and ds.to_pandas().n.sum() == 6
    assert list(pickle.loads(pickle.dumps(ds))) == list(ds) and list(sx.open(ds.reference())) == list(ds)
    assert sx.load_dataset(path, split="train[:1]")[0].n == 1
    plain = sx.open(written(tmp_path, [file_object("a.csv")], record_set(X, S)))
    assert ds.fingerprint != plain.fingerprint != sx.open(path, fields=["x"]).fingerprint


def test_record_set_is_chosen(tmp_path: Path) -> None:
    csv(tmp_path)
    sets = record_set(X | {"@id": "numbers/x"}, name="numbers"), record_set(S | {"name": "s"}, name="texts")
    path = written(tmp_path, [file_object("a.csv")], sets[0], sets[1] | {"name": "Texts"})
    assert [sx.open(path, record_set=name).fields for name in ("numbers", "texts", "Texts")] == [["x"], ["s"], ["s"]]
    with pytest.raises(ArgumentError, match=r"expected record_set= with one of its record sets: numbers, texts"):
        sx.open(path)
    with pytest.raises(ArgumentError, match=r"\(numbers, texts\), got 'number': did you mean 'numbers'"):
        sx.open(path, record_set="number")
    with pytest.raises(FormatError, match="expected a record set with columns of files, got none"):
        sx.open(written(tmp_path, [file_object("a.csv")]))


def test_declared_types(tmp_path: Path) -> None:
    """Text that looks like numbers stays text, arrays have their shape."""
    csv(tmp_path, "zip,n,f\n00501,1,2\n10001,,3\n")
    fields = field("zip", "sc:Text"), field("n", "sc:Integer"), field("f", "cr:Float32")
    ds = sx.open(written(tmp_path, [file_object("a.csv")], record_set(*fields)))
    assert ds["zip"][:] == ["00501", "10001"] and ds.features["f"] == sx.Value("float64") and ds[1].n is None
    assert sx.open(tmp_path / "metadata.json", schema={"zip": int, "n": sx.Optional(int), "f": int})[0].zip == 501

    (tmp_path / "a.jsonl").write_text('{"v": [1, 2], "t": "2026-01-01"}\n{"v": [3, 4], "t": "2026-01-02"}\n')
    vector = field("v", "sc:Float", isArray=True, arrayShape="2")
    files = file_object("a.jsonl", "application/jsonlines")
    assert sx.open(written(tmp_path, [files], record_set(vector)))[1].v.tolist() == [3.0, 4.0]
    path = written(tmp_path, [files], record_set(vector, field("t", "sc:DateTime")))
    with pytest.warns(UserWarning, match="field t is declared as DateTime, and read as text"):
        assert sx.open(path)[0].t == "2026-01-01"

    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "a.parquet")
    files = file_object("a.parquet", "application/x-parquet")
    assert sx.open(written(tmp_path, [files], record_set(field("n", "sc:Float"))))[0].n == 1
    with pytest.raises(ShardexError) as refused:
        sx.open(written(tmp_path, [files], record_set(field("n", "sc:Text"))))
    assert "declares these types; with schema=" in str(refused.value.__notes__)


def test_other_json_is_not_taken_for_croissant(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"about": "http://mlcommons.org/croissant/ and \\"@context\\""}]')
    csv(tmp_path)
    path = written(tmp_path, [file_object("a.csv")], record_set(X))
    assert recognise(find(tmp_path / "a.json")) == "jsonl" and recognise(find(path)) == "croissant"
    assert sx.open(path, format="jsonl")[0].name == "d"
    (tmp_path / "a.json").unlink()
    assert sx.open(tmp_path).fields == ["x", "s"], "the folder has data, which the metadata describe"
    with pytest.raises(ArgumentError, match="describe what is returned with to_croissant"):
        sx.write(tmp_path / "new", [{"x": 1}], format="croissant")


def test_names_are_unique(tmp_path: Path) -> None:
    csv(tmp_path)
    for again in (record_set(X, X), record_set(X, S | {"name": "x"})):
        with pytest.raises(FormatError, match="expected objects with names of their own in field"):
            sx.open(written(tmp_path, [file_object("a.csv")], again))
    with pytest.raises(FormatError, match="expected objects with names of their own in distribution"):
        sx.open(written(tmp_path, [file_object("a.csv"), file_object("b.csv")], record_set(X)))


def test_metadata_are_no_data_of_a_set(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"x": 1}')
    assert list(sx.open(written(tmp_path, [file_set("*.json", "application/json")], record_set(X)))) == [{"x": 1}]


def test_archives_and_compressed_files(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for name in ("data/b.csv", "data/a.csv", "data/note.txt", "other/c.csv"):
            archive.writestr(name, f"x,s\n1,{name}\n")
    digest = hashlib.sha256((tmp_path / "all.zip").read_bytes()).hexdigest()
    archives = [file_object("all.zip", "application/zip", sha256=digest) | {"@id": "zip"}]
    inside: Node = {"containedIn": {"@id": "zip"}}
    path = written(tmp_path, [*archives, file_set("data/*.csv", "text/csv", **inside)], record_set(S))
    assert sx.open(path)["s"][:] == ["data/a.csv", "data/b.csv"]
    path = written(tmp_path, [*archives, file_object("other/c.csv", **inside)], record_set(S))
    assert sx.open(path)["s"][:] == ["other/c.csv"]
    path = written(tmp_path, [*archives, file_object("missing.csv", **inside)], record_set(S))
    with pytest.raises(FormatError, match=r"file: expected files in zip that match missing\.csv, got none"):
        sx.open(path)
    repository = file_object("https://huggingface.co/datasets/x", "git+https", sha256="https://no") | {"@id": "repo"}
    path = written(tmp_path, [repository, file_set("*.parquet", containedIn={"@id": "repo"})], record_set(S))
    with pytest.raises(FormatError, match=r"got files in repo \(git\+https\); download it, and open its files"):
        sx.open(path)

    packed = gzip.compress(b"x,s\n1,packed\n")
    (tmp_path / "a.csv.gz").write_bytes(packed)
    digest = hashlib.sha256(packed).hexdigest()
    assert sx.open(written(tmp_path, [file_object("a.csv.gz", sha256=digest)], record_set(S)))[0].s == "packed"


# -- checksums ----------------------------------------------------------------------------------------------------


def test_checksums(tmp_path: Path) -> None:
    right = csv(tmp_path)
    ds = sx.open(written(tmp_path, [file_object("./a.csv", sha256=right.upper())], record_set(X)))
    assert ds["x"][:].tolist() == [1, 2]
    path = written(tmp_path, [file_object("a.csv", sha256="0" * 64)], record_set(X))
    with pytest.raises(ChecksumError, match=rf"/a\.csv: expected the sha256 {'0' * 64}, got {right}: the file"):
        sx.open(path)
    assert len(sx.open(path, verify=False)) == 2
    path = written(tmp_path, [file_object("a.csv", md5=hashlib.md5(b"other").hexdigest())], record_set(X))
    with pytest.raises(ChecksumError, match="expected the md5"):
        sx.open(path)
    with pytest.raises(FormatError, match=r"expected 64 hexadecimal digits as sha256 of .*a\.csv, got 'nonsense'"):
        sx.open(written(tmp_path, [file_object("a.csv", sha256="nonsense")], record_set(X)))


def test_checksums_of_the_files_of_a_set(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("x,s\n3,c\n")
    files = [file_object("a.csv", sha256=csv(tmp_path)) | {"@id": "a"}]
    files += [file_object("b.csv", sha256="1" * 64) | {"@id": "b"}, file_set(["*.csv"], "text/csv")]
    path = written(tmp_path, files, record_set(X))
    with pytest.raises(ChecksumError, match=r"/b\.csv: expected the sha256 1111"):
        sx.open(path)
    files[2]["includes"] = "a.csv"
    assert len(sx.open(written(tmp_path, files, record_set(X)))) == 2


def test_verified_once(tmp_path: Path) -> None:
    """Other processes compare the fingerprint, as for every dataset."""
    path = written(tmp_path, [file_object("a.csv", sha256=csv(tmp_path))], record_set(X))
    ds = sx.open(path)
    assert ds.reference()["options"] == {"verify": False}
    again = pickle.dumps(ds)
    path.write_bytes(path.read_bytes().replace(b'"sha256": "', b'"sha256": "0'))
    assert len(pickle.loads(again)) == 2


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"source": {"extract": {"column": "x"}}}, "expected a source out of file, got ''"),
        ({"source": None}, "expected a source that is a column of files, got None"),
        ({"subField": [X]}, r"expected a plain column, got \['subField'\]"),
        ({"references": {"@id": "other/x"}}, r"expected a plain column, got \['references'\]"),
        ({"extract": {"jsonPath": "$.x"}}, r"expected a source that is a column, got \['jsonPath'\]"),
        ({"extract": {"fileProperty": "filename"}}, r"expected a source that is a column, got \['fileProperty'\]"),
        ({"extract": {}}, "expected a source that is a column, got {}"),
        ({"transform": {"regex": "(.)"}}, r"expected a source that is a column, got \['transform'\]"),
        ({"transform": {"jsonPath": "bytes"}}, r"expected a source that is a column, got \['transform'\]"),
        ({"extract": {"column": "y"}}, r"expected a column out of x, s in .*, got 'y'"),
        ({"extract": {"column": "s"}}, "expected a column of its own, got 's'"),
        ({"fileObject": {"@id": "other"}}, r"expected fields of one file or set of files \(file\), got 'other'"),
    ],
)
def test_fields_that_are_more_than_columns_are_named(tmp_path: Path, change: Node, expected: str) -> None:
    csv(tmp_path)
    wrong = field("wrong", "sc:Integer", "x")
    for key, value in change.items():
        if key in ("extract", "transform", "fileObject"):
            wrong["source"][key] = value
        else:
            wrong[key] = value
    files = [file_object("a.csv"), file_object("a.csv") | {"@id": "other"}]
    path = written(tmp_path, files if "fileObject" in change else files[:1], record_set(S, wrong))
    with pytest.raises(FormatError, match=rf"metadata\.json: {expected} - at field wrong; choose fields"):
        sx.open(path)
    assert sx.open(path, fields=["s"])["s"][:] == ["a", "b"]
    with pytest.raises(ArgumentError, match=r"expected a list of fields out of s, wrong, got \['t'\]"):
        sx.open(path, fields=["t"])


@pytest.mark.parametrize(
    "url",
    ["../secret.csv", "a/../../secret.csv", "/etc/passwd", "file:///etc/passwd", "", ".", "\\secret.csv"],
)
def test_paths_stay_in_the_folder(tmp_path: Path, url: str) -> None:
    (tmp_path / "secret.csv").write_text("x,s\n1,secret\n")
    (tmp_path / "d").mkdir()
    path = written(tmp_path / "d", [file_object(url)], record_set(S))
    with pytest.raises(PathError, match=r"distribution file: expected a path in the folder of this metadata, or a URL"):
        sx.open(path)
    with pytest.raises((PathError, NotFoundError, FormatError)):
        sx.open(written(tmp_path / "d", [file_set([url or "../*", "../*.csv"], "text/csv")], record_set(S)))


def test_patterns_are_no_names(tmp_path: Path) -> None:
    """Braces could hide a path out of the folder."""
    for folder in (tmp_path, tmp_path / "d", tmp_path / "d" / "e"):
        folder.mkdir(exist_ok=True)
        csv(folder)
    for node in (file_object("{,../}a.csv"), file_object("e"), file_set(["{,../}a.csv"], "text/csv")):
        path = written(tmp_path / "d", [node], record_set(X))
        (tmp_path / "d" / "e" / "b.csv").write_text("x,s\n1,b\n")
        with pytest.raises(FormatError, match="distribution file: expected names of files, got"):
            sx.open(path)
    (tmp_path / "d" / "[1] {a,b}.csv").write_text("x,s\n7,c\n")
    assert sx.open(written(tmp_path / "d", [file_object("[1] {a,b}.csv")], record_set(X)))[0].x == 7


def test_urls_that_data_may_not_name(tmp_path: Path) -> None:
    sx.write("memory://croissant-private/a.csv", [{"x": 1}], format="csv")
    for url in ("memory://croissant-private/a.csv", "gopher://host/a.csv", "s3://bucket?x=1/a.csv"):
        with pytest.raises(AddressError):
            sx.open(written(tmp_path, [file_object(url)], record_set(X)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"{", "expected metadata of Croissant in JSON"),
        (b"[1]", "expected metadata of Croissant, got a JSON list"),
        (b'{"recordSet": 3}', "expected objects with names of their own in recordSet, got 3"),
        (b'{"recordSet": [{"field": []}]}', "expected objects with names of their own in recordSet"),
        (b'{"recordSet": {"@id": "a", "field": []}}', "expected fields in the record set a, got none"),
        (b'{"a": ' * 100_000, "expected metadata of Croissant in JSON"),
        (b" " * (16 << 20) + b"{}", "expected metadata of at most 16777216 bytes, got 16777218"),
    ],
)
def test_damaged_metadata(tmp_path: Path, text: bytes, expected: str) -> None:
    (tmp_path / "metadata.json").write_bytes(text)
    with pytest.raises(FormatError, match=rf"metadata\.json: {expected}"):
        sx.open(tmp_path / "metadata.json", format="croissant")


def test_formats_that_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    path = written(tmp_path, [file_object("a.xlsx", "application/vnd.ms-excel")], record_set(X))
    with pytest.raises(UnknownFormatError, match=r"file: expected an encodingFormat .* got application/vnd"):
        sx.open(path)
    path = written(tmp_path, [file_object("metadata.json", "application/ld+json")], record_set(X))
    with pytest.raises(UnknownFormatError, match="expected files of data, got metadata of Croissant"):
        sx.open(path)
    with pytest.raises(NotFoundError, match=r"missing\.csv"):
        sx.open(written(tmp_path, [file_object("missing.csv")], record_set(X)))
    with pytest.raises(FormatError, match=r"expected files that match \*\.csv, got none"):
        sx.open(written(tmp_path, [file_set("*.csv", "text/csv")], record_set(X)))
    with pytest.raises(FormatError, match="expected neither excludes nor several archives"):
        sx.open(written(tmp_path, [file_set("*.csv", "text/csv", excludes="a*")], record_set(X)))


# -- web servers --------------------------------------------------------------------------------------------------


def test_metadata_of_a_web_server(web: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files beside the metadata are read; other addresses that they name must be public."""
    monkeypatch.setenv("SHARDEX_CACHE", str(tmp_path / "cache"))
    web.files["d/a.csv"] = web.files["e/a.csv"] = b"x,s\n1,a\n"
    digest = hashlib.sha256(web.files["d/a.csv"]).hexdigest()
    root = web.url()

    def serve(*nodes: Node) -> str:
        web.files[name := f"d/{len(web.files)}.json"] = document(list(nodes), record_set(X))
        return f"{root}/{name}"

    assert sx.open(serve(file_object("a.csv", sha256=digest)))[0].x == 1
    assert sx.open(serve(file_object(f"{root}/d/a.csv", sha256=digest)))[0].x == 1
    assert len(sx.open(serve(file_set(["a.csv"], "text/csv")))) == 1
    with pytest.raises(FormatError, match=r"a web server does not list those that match \*\.csv; download the dataset"):
        sx.open(serve(file_set(["*.csv"], "text/csv")))
    web.files["d/croissant"] = document([file_object("a.csv")], record_set(X))
    assert sx.open(f"{root}/d/croissant", format="croissant")[0].x == 1
    with pytest.raises(ChecksumError, match=r"/d/a\.csv: expected the sha256 2222"):
        sx.open(serve(file_object("a.csv", sha256="2" * 64)))
    elsewhere = serve(file_object(f"{root}/e/a.csv"))
    with pytest.raises(AddressError, match="expected an address of the public internet"):
        sx.open(elsewhere)
    assert sx.open(elsewhere, trusted=True)[0].x == 1
    for url in ("../e/a.csv", "/etc/passwd", "file:///etc/passwd"):
        with pytest.raises(PathError, match="in the folder of this metadata"):
            sx.open(serve(file_object(url)))

    local = written(tmp_path, [file_object(f"{root}/e/a.csv")], record_set(X))
    with pytest.raises(AddressError, match="expected an address of the public internet"):
        sx.open(local)  # which may be a copy of what a stranger wrote
    assert sx.open(local, trusted=True)[0].x == 1
