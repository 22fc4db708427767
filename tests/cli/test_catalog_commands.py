"""`shardex catalog`: output as text and as JSON, exit codes, and records that are exported and imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import shardex as sx
from tests.cli.test_commands import run

COMMANDS = ["ls", "show", "add", "tag", "history", "diff", "rm", "export", "import", "stub"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two versions of @corpus: with the fields x and name, and with another one."""
    sx.write(tmp_path / "a", [{"x": 1, "name": "a"}], register="@corpus")
    sx.write(tmp_path / "b", [{"x": 1, "name": "a", "y": 2}] * 2, register="@corpus")
    sx.Catalog().tag("corpus", "stable", 1)
    return tmp_path


def as_json(*arguments: object) -> Any:
    return json.loads(run("catalog", *arguments, "--json").stdout)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_a_summary_and_an_example(command: str) -> None:
    shown = run("catalog", command, "--help").output
    assert f"Example: shardex catalog {command}" in shown and "--catalog" in shown and "--json" in shown


def test_add_and_show(tmp_path: Path) -> None:
    sx.write(tmp_path / "raw", [{"x": 1}], register="@raw")
    sx.write(tmp_path / "d", [{"x": 1}], format="jsonl")
    about = ["--description", "all text", "--tag", "text", "--tag", "en", "--license", "MIT", "--parent", "raw@1"]
    done = run("catalog", "add", "corpus", tmp_path / "d", "-o", "decode=json", *about, "--expect", 0)
    assert done.stdout == f"corpus@1: 1 sample of {tmp_path / 'd'}\n"
    record = sx.Catalog().get("corpus")
    assert (record.tags, record.license, str(record.parents[0])) == (["text", "en"], "MIT", "raw@1")
    run("catalog", "tag", "corpus", "stable")
    shown = run("catalog", "show", "corpus:stable").stdout
    for line in ("name         corpus@1, :stable", "tags         text, en", "parents      raw@1", "x      int64"):
        assert line in shown
    found = as_json("show", "corpus")
    assert found["named"] == ["stable"] and found["fingerprint"] == record.fingerprint
    failed = run("catalog", "add", "corpus", tmp_path / "d", "--expect", 5, "--license", "GPL", code=1)
    assert (
        failed.stderr.startswith("shardex: ") and "expected version 5 to be the newest one of corpus" in failed.stderr
    )
    assert as_json("add", "corpus", tmp_path / "d", "--license", "GPL")["version"] == 2


def test_ls(data: Path) -> None:
    sx.write(data / "c", [{"z": 1}], register="@team/other")
    assert run("catalog", "ls").stdout.splitlines() == [
        "name          samples  format  description",
        "corpus@2      2        arrow",
        "team/other@1  1        arrow",
    ]
    assert "corpus" not in run("catalog", "ls", "team/").stdout
    assert run("catalog", "ls", "--field", "z", "--search", "oth").stdout.count("\n") == 2
    assert run("catalog", "ls", "--tag", "nothing").stdout == ""
    assert [json.loads(line)["name"] for line in run("catalog", "ls", "--json").stdout.splitlines()] == [
        "corpus",
        "team/other",
    ]


def test_history_diff_and_stub(data: Path) -> None:
    lines = run("catalog", "history", "corpus").stdout.splitlines()
    assert lines[1].startswith("1        stable  1") and lines[2].endswith("major: y was added (int64)")
    assert [one["version"] for one in as_json("history", "corpus")] == [1, 2]
    shown = run("catalog", "diff", "corpus:stable", "corpus").stdout
    assert shown.startswith("fields: major: y was added (int64)\nfingerprint") and "samples      1" in shown
    found = as_json("diff", "corpus@1", "corpus@2")
    assert found["level"] == "major" and found["changed"]["samples"] == [1, 2]
    assert run("catalog", "diff", "corpus@1", "corpus@1").stdout == "fields: the same fields\n"
    text = run("catalog", "stub", "corpus").stdout
    assert "class Corpus(sx.PackableSample):\n    x: int  # int64\n    name: str  # text\n" in text
    assert as_json("stub", "corpus@1", "--name", "Old")["stub"].count("class Old(") == 1


def test_commands_that_read_take_names(data: Path) -> None:
    assert json.loads(run("info", "@corpus@1", "--json").stdout)["samples"] == 1
    assert run("head", "@corpus:stable").stdout.count("sample ") == 1
    assert json.loads(run("sql", "@corpus", "-q", "SELECT count(*) AS n FROM ds", "--json").stdout) == {"n": 2}
    assert "expected the name of a dataset" in run("info", "@nothing", code=1).stderr


def test_commands_for_folders_and_those_that_write_take_names(data: Path) -> None:
    sx.write(data / "b", [{"x": 5, "name": "e", "y": 6}], mode="append", register="@corpus")
    run("convert", "@corpus@2", data / "out.jsonl")
    assert len((data / "out.jsonl").read_text().splitlines()) == 2
    run("catalog", "add", "again", "@corpus@2")
    assert sx.open("@again").version == 1
    assert json.loads(run("index", "@corpus", "--json").stdout)["samples"] == 3
    assert run("verify", "@corpus@2").stdout == "nothing is wrong\n"
    assert run("history", "@corpus@2").stdout == run("history", data / "b").stdout
    assert run("recover", "@corpus", data / "saved").stdout == f"saved 3 samples in {data / 'saved'}\n"
    assert "note: expected version 1, which @corpus@2 names" in run("recover", "@corpus@2", data / "old").stdout
    assert json.loads(run("restore", "@corpus", 1, "--json").stdout) == {"version": 3, "restored": 1}
    assert json.loads(run("compact", "@corpus", "--json").stdout) == {"version": None}
    assert "removed" in run("clean", "@corpus", "-y", "--grace", 0).stdout
    assert "expected the name of a dataset" in run("history", "@nothing", code=1).stderr


def test_names_of_other_formats_have_the_options_of_their_record(tmp_path: Path) -> None:
    (tmp_path / "t.bin").write_bytes(bytes(64))
    sx.Catalog().put("tokens", sx.open(tmp_path / "t.bin", format="tokens", dtype="uint16", window=8))
    assert json.loads(run("index", "@tokens", "--json").stdout)["samples"] == 4
    assert json.loads(run("index", "@tokens", "-o", "window=16", "--json").stdout)["samples"] == 2
    assert run("verify", "@tokens").stdout == "nothing is wrong\n"
    assert run("recover", "@tokens", tmp_path / "saved").stdout.startswith("saved 4 samples")


def test_commands_for_folders_refuse_records_of_others(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDEX_CATALOGS", f"team={data / 'team'}")
    record = sx.Catalog().get("corpus")
    plain = {**json.loads(run("catalog", "show", "corpus", "--json").stdout), "urls": ["s3://bucket/corpus"]}
    plain.pop("named"), plain.pop("trusted", None)
    (data / "others.jsonl").write_text(json.dumps(plain))
    run("catalog", "import", data / "others.jsonl", "--catalog", "@team")
    for command in (["history"], ["verify"], ["compact"]):
        failed = run(*command, f"@team/corpus@{record.version}", code=1).stderr
        assert "got a record of others; if you trust it, give its path: s3://bucket/corpus" in failed


def test_tag_and_rm(data: Path) -> None:
    assert run("catalog", "tag", "corpus", "best", 2).stdout == "corpus:best is corpus@2\n"
    assert run("catalog", "tag", "corpus", "best", "--remove").stdout == "corpus:best is nothing now\n"
    assert run("catalog", "rm", "corpus@1", "-y").stdout == "removed corpus@1\n"
    assert as_json("rm", "corpus", "--yes") == {"removed": "corpus"}
    failed = run("catalog", "show", "corpus", code=1)
    assert "all versions of 'corpus' were removed" in failed.stderr
    assert (data / "a").exists()


def test_other_catalogs(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDEX_CATALOGS", f"team={data / 'team'}")
    run("catalog", "add", "@team/corpus", data / "a")
    for where in ("@team", data / "team"):
        assert as_json("show", "corpus", "--catalog", where)["version"] == 1
    assert as_json("show", "@team/corpus@1")["samples"] == 1
    assert "expected a name without @" in run("catalog", "show", "@team/corpus", "--catalog", "x", code=1).stderr


def test_export_and_import(data: Path) -> None:
    exported = run("catalog", "export", "--json").stdout
    (data / "out.jsonl").write_text(exported)
    assert [json.loads(line)["version"] for line in exported.splitlines()] == [1, 2]
    other = data / "other.db"
    failed = run("catalog", "import", data / "out.jsonl", "--catalog", other, code=1)
    assert "corpus@1: expected a URL in a record of a catalog that others write to, got the local path" in failed.stderr
    assert run("catalog", "import", data / "out.jsonl", "--catalog", other, "--trusted").stdout == "added 2 versions\n"
    assert sx.Catalog(other).history("corpus") == sx.Catalog().history("corpus")
    assert as_json("import", data / "out.jsonl", "--catalog", other, "--trusted") == {"added": 0}
    (data / "bad.jsonl").write_text('{"name": 1}\n')
    assert "bad.jsonl: line 1: expected a record" in run("catalog", "import", data / "bad.jsonl", code=1).stderr
    assert "no.jsonl" in run("catalog", "import", data / "no.jsonl", code=1).stderr


def test_schemas_and_lenses(data: Path) -> None:
    catalog = sx.Catalog()
    catalog.schemas.put("Point", {"x": "float32", "y": "float32"}, description="in the plane")
    catalog.schemas.put("X", {"x": "float32"})
    code = {"repository": "https://example.com/lab", "commit": "1a2b"}
    catalog.lenses.put("x", source="Point", view="X", fields={"x": "x"}, code=code)
    assert run("catalog", "ls", "--kind", "schema").stdout.splitlines() == [
        "name         description",
        "Point@1.0.0  in the plane",
        "X@1.0.0",
    ]
    assert "x@1.0.0" in run("catalog", "ls", "--kind", "lens").stdout
    assert [run("catalog", "ls", "P", "--kind", kind).stdout for kind in ("dataset", "lens")] == ["", ""]
    shown = run("catalog", "show", "Point@1.0.0", "--kind", "schema").stdout.splitlines()
    assert ["name", "Point"] in map(str.split, shown) and shown[-1].split() == ["y", "float32"]
    lens = run("catalog", "show", "x", "--kind", "lens").stdout
    assert "https://example.com/lab" in lens and lens.splitlines()[-1].split() == ["x", "x"]
    assert as_json("show", "X", "--kind", "schema")["version"] == "1.0.0"
    assert "class Point(sx.PackableSample):\n    x: float" in run("catalog", "stub", "Point", "--kind", "schema").stdout
    assert "got the lens x@1.0.0" in run("catalog", "stub", "x", "--kind", "lens", code=1).stderr
    assert run("catalog", "rm", "x@1.0.0", "--kind", "lens", "--yes").stdout == "removed x@1.0.0\n"
    assert run("catalog", "ls", "--kind", "lens").stdout == ""
    failed = run("catalog", "ls", "--kind", "lens", "--search", "x", code=1)
    assert "expected --search, --tag and --field with datasets only" in failed.stderr


def test_schemas_and_lenses_are_exported(data: Path) -> None:
    catalog = sx.Catalog()
    catalog.schemas.put("Point", {"x": "float32"})
    catalog.lenses.put("same", source="Point", view="Point")
    (data / "all.jsonl").write_text(run("catalog", "export").stdout)
    other = data / "other.db"
    assert run("catalog", "import", data / "all.jsonl", "--catalog", other, "--trusted").stdout == "added 4 versions\n"
    assert [str(one) for one in sx.Catalog(other).lenses.list()] == ["same@1.0.0"]
