"""The command `convert`: formats, functions of the user, errors, and a run that is stopped and continued."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import shardex as sx
from shardex.cli import commands as cli

FUNCTIONS = """
import functools
import os

FIELDS = {"y": "float32"}


@functools.cache
def factor():
    return 2


def double(sample):
    return {"y": factor() * sample.x}


def twice(sample):
    return [sample, sample]


def doubled(batch):
    return {"y": 2 * batch.x}


def even(sample):
    return sample.x % 2 == 0


def failing(sample):
    if sample.x == 7:
        raise KeyError("missing")
    return sample


def waiting(sample):
    if sample.x >= 128 and not os.path.exists("go"):
        open("waits", "w").close()
        while not os.path.exists("go"):
            pass
    return sample
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a dataset of ten samples and a module of functions; it is the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "prepare", raising=False)
    (tmp_path / "prepare.py").write_text(FUNCTIONS, "utf-8")
    sx.write("source", [{"x": k, "name": f"n{k}"} for k in range(10)], progress=False)
    return tmp_path


def run(*arguments: object, code: int = 0) -> Result:
    done = CliRunner().invoke(cli.app, ["convert", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done


@pytest.mark.parametrize("format", ["arrow", "jsonl", "csv", "parquet", "tar", "bins"])
def test_any_format(format: str) -> None:
    printed = run("source", "out", "--to", format).stdout
    assert printed.startswith("10 samples, ") and printed.endswith(("B/s\n", "bytes/s\n")) and printed.count("\n") == 1
    assert [sample["name"] for sample in sx.open("out")][9] == "n9"


def test_several_files_and_options_of_both_formats() -> None:
    run("source", "lines", "--to", "jsonl", "--to-option", "shard_rows=4")
    files = sorted(map(str, Path("lines").glob("*.jsonl")))
    assert len(files) == 3
    run(*files[:2], "out", "-o", "decode=text")
    assert sx.open("out")[7] == {"text": '{"x":7,"name":"n7"}'}


def test_json() -> None:
    facts = json.loads(run("source", "out", "--to", "parquet", "--to-option", "shard_rows=5", "--json").stdout)
    assert facts["path"] == os.path.abspath("out") and facts["format"] == "parquet"
    assert (facts["samples"], facts["files"], facts["left_out"]) == (10, 2, [])
    assert facts["bytes"] == sum(path.stat().st_size for path in Path("out").glob("*.parquet"))
    assert facts["seconds"] > 0 and facts["mb_per_second"] > 0


def test_the_name_of_a_file_decides_the_format() -> None:
    facts = json.loads(run("source", "out.parquet", "--json").stdout)
    assert (facts["format"], facts["samples"], facts["files"]) == ("parquet", 10, 1)
    assert facts["bytes"] == os.path.getsize("out.parquet") and len(sx.open("out.parquet")) == 10
    assert "a file exists there already; pass --mode overwrite" in run("source", "out.parquet", code=1).stderr
    run("out.parquet", "out.csv", "--transform", "prepare:double", "--workers", "1")
    assert Path("out.csv").is_file() and len(sx.open("out.csv")) == 10
    assert "or of a file that can be written (" in run("source", "out.json", code=1).stderr
    run("source", "out.json", "--to", "arrow")
    assert Path("out.json").is_dir()


def test_files_of_several_formats() -> None:
    Path("cars.json").write_text('{"a": 1}\n')
    Path("stocks.csv").write_text("a\n1\n")
    printed = run("cars.json", "stocks.csv", "out", code=1).stderr
    assert "got 2 files (1 .json, 1 .csv); choose what to read with --format jsonl or --format csv" in printed


def test_append_reports_what_it_wrote() -> None:
    for mode, samples in [("append", 10), ("append", 10), ("overwrite", 10)]:
        facts = json.loads(run("source", "out", "--mode", mode, "--json").stdout)
        assert (facts["samples"], facts["files"]) == (samples, 1)
    assert len(sx.open("out")) == 10 and len(sx.open("out", version=2)) == 20


def test_where_and_fields() -> None:
    run("source", "out", "--where", "x > 6 AND name != 'n8'", "--fields", "name")
    assert list(sx.open("out")) == [{"name": "n7"}, {"name": "n9"}]


@pytest.mark.parametrize("workers", [[], ["--workers", "2"], ["--executor", "threads"]])
def test_functions_of_the_user(workers: list[str]) -> None:
    run("source", "out", "--transform", "prepare:double", "--filter", "prepare:even", *workers)
    assert [sample.y for sample in sx.open("out")] == [0, 4, 8, 12, 16]


def test_batches_and_schema() -> None:
    run("source", "out", "--transform", "prepare:doubled", "--batched", "--batch-size", 3, "--schema", "prepare:FIELDS")
    out = sx.open("out")
    assert out["y"].dtype == "float32" and out["y"].tolist() == [*range(0, 20, 2)]
    assert run("source", "two", "--transform", "prepare:twice").stdout.startswith("20 samples")


def test_remote_target_and_source(bucket: str) -> None:
    done = json.loads(run("source", f"{bucket}/out", "--to", "jsonl", "--workers", 2, "--json").stdout)
    assert done["bytes"] > 0 and done["files"] == 1
    run(f"{bucket}/out", "back", "--workers", 2)
    assert sx.open("back")[3] == {"x": 3, "name": "n3"}


# -- errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [[], ["--workers", "2"]])
def test_error_in_a_function_names_line_function_and_sample(workers: list[str]) -> None:
    error = run("source", "out", "--transform", "prepare:failing", *workers, code=1).stderr.splitlines()
    assert error[0].startswith("shardex: KeyError: 'missing' (") and error[0].endswith("prepare.py, line 31)")
    assert error[1].startswith("shardex: in <function failing") and "at sample 7 of " in error[1]
    assert not [name for name in os.listdir() if "out" in name], "nothing is kept without a finished part"


def test_finished_parts_are_named() -> None:
    sx.write("many", [{"x": k} for k in range(1000, 0, -1)], progress=False)
    error = run("many", "out", "--transform", "prepare:failing", code=1).stderr
    assert "15 of 16 parts are finished and kept in" in error and "run the same call again" in error


def test_skip_lists_what_is_left_out() -> None:
    done = run("source", "out", "--transform", "prepare:failing", "--on-error", "skip")
    listed, total = done.stdout.splitlines()
    assert listed.startswith("left out: sample 7 of ") and listed.endswith(": KeyError: 'missing'")
    assert total.startswith("9 samples") and done.stderr == ""
    facts = json.loads(run("source", "b", "--transform", "prepare:failing", "--on-error", "skip", "--json").stdout)
    assert [one["row"] for one in facts["left_out"]] == [7]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "out"], "no such file or folder"),
        (["source", "source"], "exists there already; pass --mode append or --mode overwrite"),
        (["source", "out", "--to", "zip"], "expected a format out of"),
        (["source", "out", "--to-option", "shard_rows"], "expected an option of the format as name=value"),
        (["source", "out", "--to-option", "mode=append"], "expected an option of the format as name=value"),
        (["source", "out", "--to", "tar", "--to-option", "shard_rows=x"], "expected shard_rows to be int"),
        (["source", "out", "--to-option", "shards=1"], "got 'shards'"),
        (["source", "out", "--transform", "double"], "expected module:name, such as prepare:tokenize, got 'double'"),
        (["source", "out", "--transform", "nothing:double"], "expected the module nothing in this folder"),
        (["source", "out", "--transform", "prepare:doubl"], "prepare.py, got 'doubl': did you mean 'double'?"),
        (["source", "out", "--transform", "prepare:FIELDS"], "expected a function for transform="),
        (["source", "out", "--mode", "replace"], "expected mode to be one of create, append, overwrite"),
        (["source", "out", "--on-error", "stop"], 'expected on_error="raise" or "skip"'),
        (["source", "out", "--executor", "thread"], "did you mean 'threads'?"),
        (["source", "out", "--where", "x <"], "expected valid SQL"),
        (["source", "out", "--fields", "z"], "expected one of the fields x, name, got 'z'"),
    ],
)
def test_wrong_arguments_print_one_line(arguments: list[str], message: str) -> None:
    done = run(*arguments, code=1)
    assert done.stdout == "" and done.stderr.count("\n") == 1
    assert message in done.stderr
    assert {*os.listdir()} <= {"prepare.py", "source", "__pycache__"}


def test_interrupt_keeps_finished_parts_and_the_same_command_continues() -> None:
    sx.write("many", [{"x": k} for k in range(200)], progress=False)
    command = [sys.executable, "-m", "shardex", "convert", "many", "out", "--transform", "prepare:waiting"]
    stopped = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not Path("waits").exists():
        assert stopped.poll() is None
        time.sleep(0.01)
    stopped.send_signal(signal.SIGINT)
    _, error = stopped.communicate(timeout=60)
    assert stopped.returncode == 130
    assert error.startswith("shardex: 2 of 4 parts are finished and kept in ") and error.count("\n") == 1
    Path("go").touch()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [sample.x for sample in sx.open("out")] == [*range(200)]
    assert not [name for name in os.listdir() if name.endswith(".job")]


@pytest.mark.long
def test_function_of_a_module_on_ray(ray_cluster: Any) -> None:
    run("source", "out", "--transform", "prepare:double", "--executor", "ray")
    assert [sample.y for sample in sx.open("out")] == [*range(0, 20, 2)]


def test_the_format_of_the_input_in_the_place_of_the_target(tmp_path: Path) -> None:
    sx.write(tmp_path / "a.jsonl", [{"x": 1}])
    result = run(tmp_path / "a.jsonl", tmp_path / "out", "--format", "parquet", code=1)
    assert "did you mean --to parquet?" in result.stderr
