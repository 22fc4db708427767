"""The command line: its output as text and as JSON, and its errors."""

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import shardex as sx
from shardex.cli import commands as cli
from shardex.cli.terminal import as_options
from shardex.kernel import KERNEL

COMMANDS = ["info", "head", "show", "sql", "index", "demo", "convert", "tokenize"]
COMMANDS += ["history", "restore", "clean", "compact", "verify", "recover"]
FORMATS = ["arrow", "jsonl", "tar"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One dataset per format, named after it: ten samples of text, numbers and (except JSON) an array with NaN."""
    root = tmp_path_factory.mktemp("data")
    plain = {"name": str, "n": int}
    arrays = {"x": sx.Array("float32", (8,)), **plain, "raw": bytes, "kind": sx.ClassLabel(("odd", "even"))}
    x = np.arange(8, dtype=np.float32)
    x[1] = np.nan
    for format in FORMATS:
        with sx.create(root / format, plain if format == "jsonl" else arrays, format=format, shard_rows=4) as out:
            for k in range(10):
                sample: dict[str, Any] = {"name": f"n{k}" * (50 if k == 9 else 1), "n": k}
                out.append(sample if format == "jsonl" else {**sample, "x": x, "raw": bytes(100), "kind": k % 2})
    return root


def run(*arguments: object, code: int = 0) -> Result:
    done = CliRunner().invoke(cli.app, [str(one) for one in arguments])
    assert done.exit_code == code, done.output
    return done


def pairs(text: str) -> dict[str, str]:
    return dict(line.strip().split(None, 1) for line in text.splitlines() if line.strip())


def shell(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shardex", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **options)


# -- help -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_a_summary_and_an_example(command: str) -> None:
    text = run(command, "--help").output
    assert f"Example: shardex {command}" in text
    summary = text.splitlines()[2].strip()
    assert summary.endswith(".")
    assert summary in run("--help").output, "the list of commands shows the whole summary"
    assert text.isascii(), "no frames around plain help"


def test_every_command_is_tested_here() -> None:
    assert [command.callback.__name__ for command in cli.app.registered_commands if command.callback] == COMMANDS


def test_every_command_is_documented() -> None:
    root = Path(__file__).parents[2]
    text = "".join(path.read_text("utf-8") for path in (root / "README.md", *(root / "docs").glob("*.md")))
    missing = [command for command in COMMANDS if f"$ shardex {command} " not in text]
    assert missing == ["demo"], "the demo explains itself"


def test_version() -> None:
    assert run("--version").output == f"shardex {sx.__version__}, kernel: {KERNEL}\n"


@pytest.mark.parametrize("arguments", [["--version"], ["info", "--help"]], ids=" ".join)
def test_as_a_process(arguments: list[str]) -> None:
    done = shell(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "shardex" in done.stdout


EVERY_HELP = """
import sys
from shardex.cli import main

for command in sys.argv[1:]:
    sys.argv[:] = ["shardex", command, "--help"]
    try:
        main()
    except SystemExit as end:
        assert not end.code, command
    print(f"\\n-- end of {command}", flush=True)
"""


def test_help_of_every_command_in_a_fresh_process() -> None:
    done = subprocess.run([sys.executable, "-c", EVERY_HELP, *COMMANDS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    texts = re.split(r"\n-- end of (\w+)\n", done.stdout)
    assert texts[1::2] == [*COMMANDS]
    assert all(f"shardex {command}" in text for text, command in zip(texts[::2], COMMANDS, strict=False))


# -- info -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_info(folder: Path, format: str) -> None:
    found = pairs(run("info", folder / format).output)
    assert found["path"] == str(folder / format)
    assert (found["format"], found["samples"], found["shards"]) == (format, "10", "3")
    assert ("version" in found) == (format == "arrow")
    assert (found["name"], found["field"]) == ("text", "feature")


@pytest.mark.parametrize("format", FORMATS)
def test_info_as_json(folder: Path, format: str) -> None:
    found = json.loads(run("info", folder / format, "--json").output)
    ds = sx.open(folder / format)
    assert sx.Features.from_json(found.pop("fields")) == ds.features
    sizes = [
        path.stat().st_size for path in (folder / format).rglob("*") if "shardex" not in str(path.relative_to(folder))
    ]
    assert found.pop("bytes") <= sum(sizes)
    assert len(found.pop("fingerprint")) == 16
    version = 1 if format == "arrow" else None
    assert found == {"path": str(folder / format), "format": format, "version": version, "samples": 10, "shards": 3}


def test_info_of_several_files(folder: Path) -> None:
    files = sorted((folder / "jsonl").glob("*.jsonl"))[:2]
    found = json.loads(run("info", *files, "--json").output)
    assert (found["samples"], found["path"]) == (8, list(map(str, files)))
    assert pairs(run("info", *files).output)["path"] == f"{files[0]} and 1 more"


def test_info_says_that_the_fields_were_found_in_a_sample(folder: Path) -> None:
    shown = run("info", folder / "jsonl", "-o", "infer_from=sample").output
    assert "fields found in  10 samples (-o infer_from=all reads all)" in shown
    assert "infer_from" not in run("info", folder / "jsonl").output
    assert "infer_from" not in run("info", folder / "jsonl", "-o", "infer_from=all").output


def test_info_as_a_process(folder: Path) -> None:
    done = shell("info", "jsonl", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert pairs(done.stdout)["samples"] == "10"


# -- head -------------------------------------------------------------------------------------------------------


def test_head(folder: Path) -> None:
    text = run("head", folder / "arrow", "-n", 1).output
    assert text == (
        "sample 0\n"
        "  x     float32[8]  0 nan 2 3 4 5 ...\n"
        "  name  'n0'\n"
        "  n     0\n"
        f"  raw   100 bytes  {'00 ' * 16}...\n"
        "  kind  0 (odd)\n"
    )


def test_head_cuts_long_text(folder: Path) -> None:
    text = run("head", folder / "jsonl", "--skip", 9).output
    assert "... (100 characters)" in text
    assert max(map(len, text.splitlines())) < 120


@pytest.mark.parametrize("format", FORMATS)
def test_head_counts_and_skips(folder: Path, format: str) -> None:
    def numbers(*options: object) -> list[str]:
        return [line for line in run("head", folder / format, *options).output.splitlines() if line[0] == "s"]

    assert len(numbers()) == 5
    assert numbers("-n", 2, "--skip", 3) == ["sample 3", "sample 4"]
    assert numbers("--skip", 9) == ["sample 9"]
    assert numbers("-n", 0) == numbers("--skip", 99) == []


def test_head_as_json(folder: Path) -> None:
    first, *_ = lines = run("head", folder / "arrow", "-n", 3, "--json").output.splitlines()
    assert len(lines) == 3
    assert json.loads(first) == {
        "x": [0, None, 2, 3, 4, 5, 6, 7],
        "name": "n0",
        "n": 0,
        "raw": {"bytes": "00" * 64, "length": 100, "cut": True},
        "kind": 0,
    }


def test_head_of_some_fields(folder: Path) -> None:
    assert json.loads(run("head", folder / "jsonl", "-n", 1, "--fields", "n", "--json").output) == {"n": 0}
    assert run("head", folder / "arrow", "-n", 1, "--fields", "n,name").output == "sample 0\n  n     0\n  name  'n0'\n"


@pytest.mark.parametrize("format", FORMATS)
def test_sql(folder: Path, format: str) -> None:
    many = run("sql", folder / format, "-q", "SELECT count(*) AS many, 'a' AS b FROM ds").output
    assert many == f"many  b\n{len(sx.open(folder / format)):<4}  'a'\n"
    rows = run("sql", folder / format, "-q", "SELECT _row FROM ds WHERE _row > 7", "--json").output.splitlines()
    assert [json.loads(row) for row in rows] == [{"_row": 8}, {"_row": 9}]


def test_sql_error_is_one_line(folder: Path) -> None:
    failed = run("sql", folder / "arrow", "-q", "SELECT nn FROM ds", code=1)
    assert "nn" in failed.stderr and "the fields are x, name" in failed.stderr and failed.stderr.count("\n") == 1


def test_remote_dataset() -> None:
    sx.write("memory://test-cli/d", [{"n": k} for k in range(3)], progress=False)
    facts = pairs(run("info", "memory://test-cli/d").output.partition("\n\n")[0])
    assert (facts["path"], facts["samples"], "bytes" in facts) == ("memory://test-cli/d", "3", False)
    assert run("head", "memory://test-cli/d", "-n", 1).output == "sample 0\n  n  0\n"


def test_control_characters_are_escaped(tmp_path: Path) -> None:
    lines = [{"a": "\x1b[31mred", "j": {"k": "\x9b2J"}, "\x1b": 1, "s": "\ud800"}]
    (tmp_path / "a.jsonl").write_text(json.dumps(lines[0]))
    assert run("head", tmp_path).output.replace("\n", "").isprintable()
    assert json.loads(run("head", tmp_path, "--json").output) == lines[0]


def test_head_into_a_closed_pipe(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "many.jsonl").write_text('{"text": "some line"}\n' * 50_000)
    command = f"'{sys.executable}' -m shardex head many.jsonl -n 50000 | head -n 1"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("sample 0\n", "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize(
    "arguments",
    [
        *("--help", "info d", "head d"),
        *(pytest.param(one, marks=pytest.mark.long) for one in ("--version", "info d --json", "head --help")),
    ],
)
def test_output_that_cannot_be_written(tmp_path: Path, arguments: str) -> None:
    sx.write(tmp_path / "d", [{"x": 1}], progress=False)
    command = f"'{sys.executable}' -m shardex {arguments}"
    full, closed, ended = (
        subprocess.run(["bash", "-c", f"{command} {to}"], cwd=tmp_path, capture_output=True, text=True, check=False)
        for to in ("> /dev/full", ">&-", "> >(exec true); exit 1")
    )
    assert (full.returncode, full.stderr) == (1, "shardex: cannot write the output: No space left on device\n")
    assert (closed.returncode, closed.stderr) == (0, "")
    assert (ended.returncode, ended.stderr) == (1, "")


# -- show -------------------------------------------------------------------------------------------------------


@pytest.mark.needs("PIL")
def test_show(folder: Path, tmp_path: Path) -> None:
    page, grid = tmp_path / "a.html", tmp_path / "a.png"
    text = run("show", folder / "arrow", "--out", page, "-n", 3, "--skip", 1, "--fields", "name,n").output
    assert text == f"3 of 9 samples: name, n - in {page}\n"
    assert "n1" in page.read_text("utf-8") and "n0" not in page.read_text("utf-8")
    run("show", folder / "tar", "--out", grid)
    assert grid.read_bytes()[:4] == b"\x89PNG"
    assert "ends in .html or .png" in run("show", folder / "arrow", "--out", tmp_path / "a.gif", code=1).stderr


def test_head_describes_images(tmp_path: Path) -> None:
    image = np.zeros((3, 4, 3), np.uint8)
    sx.write(tmp_path / "d", [{"image": image}], {"image": sx.Image()}, progress=False)
    text = run("head", tmp_path / "d").output
    assert "image  png 3 x 4  " in text


# -- index ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["jsonl", "tar"])
def test_index(folder: Path, format: str) -> None:
    found = json.loads(run("index", folder / format, "--rebuild", "--json").output)
    assert (found["state"], found["samples"]) == ("built", 10)
    assert os.path.getsize(found["index"]) == found["bytes"] == pytest.approx(10 * found["bytes_per_sample"])
    assert found["seconds"] >= 0
    assert found["mb_per_second"] >= 0
    text = pairs(run("index", folder / format).output)
    assert (text["index"], text["samples"]) == (found["index"], "10")


def test_index_in_processes(folder: Path) -> None:
    for format in ("jsonl", "arrow"):
        found = json.loads(run("index", folder / format, "--rebuild", "--workers", "2", "--json").output)
        assert found["samples"] == 10
    assert "Invalid value for '--workers'" in run("index", folder / "jsonl", "--workers", "0", code=2).stderr


def test_index_that_is_up_to_date_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("index", folder / "jsonl")
    monkeypatch.setattr(cli, "_CLOCK_LAG", -3600.0)  # every index counts as old
    found = json.loads(run("index", folder / "jsonl", "--json").output)
    assert (found["state"], found["mb_per_second"]) == ("up to date", None)


def test_rebuild_accepts_removed_files(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    run("index", tmp_path)
    (tmp_path / "b.jsonl").unlink()
    assert "-o rebuild=true" in run("index", tmp_path, code=1).stderr
    assert json.loads(run("index", tmp_path, "--rebuild", "--json").output)["samples"] == 2


def test_no_index_is_needed(folder: Path) -> None:
    assert "no index needed" in run("index", folder / "arrow", "--rebuild").output
    found = json.loads(run("index", folder / "arrow", "--json").output)
    assert found == {"index": None, "state": "none needed", "samples": 10}


def test_index_as_a_process(folder: Path) -> None:
    done = shell("index", folder / "tar", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["samples"] == 10


# -- options and errors -----------------------------------------------------------------------------------------


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    np.arange(64, dtype=np.uint16).tofile(tmp_path / "a.bin")
    return tmp_path / "a.bin"


def test_options_of_a_format(numbers: Path) -> None:
    options = ["--format", "tokens", "-o", "dtype=uint16", "-o", "window=16"]
    assert json.loads(run("info", numbers, *options, "--json").output)["samples"] == 4
    last = run("head", numbers, *options, "--skip", 3, "--json").output
    assert json.loads(last) == {"tokens": list(range(48, 64))}
    assert "no index needed" in run("index", numbers, *options).output


def test_options_get_the_types_that_the_format_declares(numbers: Path) -> None:
    options = ["--format", "tokens", "-o", "dtype=uint16", "-o", "window=64", "-o", "field=7", "-o", "rebuild=true"]
    assert json.loads(run("info", numbers, *options, "--json").output)["fields"].keys() == {"7"}


@pytest.mark.parametrize("command", ["info", "head", "index"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "zip"], "expected a format out of"),
        (["-o", "window"], "expected an option of the format as name=value, got 'window'"),
        (["-o", "format=tar"], "expected an option of the format as name=value, got 'format=tar'"),
        (["-o", "colour=red"], "got 'colour'"),
        (["-o", "rebuild=maybe"], "expected rebuild to be"),
        (["-o", "schema=x"], "expected schema to be"),
    ],
)
def test_invalid_options_print_one_line(folder: Path, command: str, options: list[str], message: str) -> None:
    done = run(command, folder / "jsonl", *options, code=1)
    assert done.stdout == ""
    assert done.stderr.startswith("shardex: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_unknown_field(folder: Path) -> None:
    assert "got 'colour'" in run("head", folder / "arrow", "--fields", "colour", code=1).stderr


@pytest.mark.parametrize("command", ["info", "head", "index"])
def test_missing_path(tmp_path: Path, command: str) -> None:
    done = run(command, tmp_path / "nowhere", code=1)
    assert done.stderr == f"shardex: no such file or folder: {tmp_path / 'nowhere'}\n"


def test_errors_as_a_process(tmp_path: Path) -> None:
    (tmp_path / "what.xyz").write_text("?")
    done = shell("head", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("shardex: ")
    assert done.stderr.count("\n") == 1, "no traceback"


def test_interrupt_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shardex.cli.demo.run", interrupted)
    done = run("demo", code=130)
    assert "Traceback" not in done.output


def test_warnings_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # main changes it
    monkeypatch.setattr(sys, "argv", ["shardex", "--version"])
    with pytest.raises(SystemExit):
        cli.main()
    assert warnings.formatwarning(UserWarning("odd"), UserWarning, "file.py", 1) == "shardex: warning: odd\n"
    assert capsys.readouterr().out == f"shardex {sx.__version__}, kernel: {KERNEL}\n"


# -- demo -------------------------------------------------------------------------------------------------------


def test_demo(tmp_path: Path) -> None:
    text = run("demo", "--folder", tmp_path / "demo", "--samples", 200).output
    assert "Checked: " in text
    assert f"shardex head {tmp_path / 'demo' / 'series'}" in text
    assert len(sx.open(tmp_path / "demo" / "series")) == 200
    assert "expected a new or empty folder" in run("demo", "--folder", tmp_path / "demo", code=1).stderr


def test_demo_as_a_process(tmp_path: Path) -> None:
    done = shell("demo", "--samples", 100, "--json", env={**os.environ, "TMPDIR": str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, "")
    assert [row["dataset"] for row in json.loads(done.stdout)] == ["series", "images", "corpus", "tokens"]
    assert not list(tmp_path.iterdir()), "the temporary folder is removed"


# -- store commands --------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three versions: four samples, one of them changed, one deleted."""
    sx.write(tmp_path / "d", [{"n": k, "s": f"s{k}"} for k in range(4)], shard_rows=2)
    with sx.edit(tmp_path / "d") as tx:
        tx.update(1, s="new")
    with sx.edit(tmp_path / "d") as tx:
        tx.delete(0)
    return tmp_path / "d"


def test_history(store: Path) -> None:
    head, *lines = run("history", store).output.splitlines()
    assert head.split() == ["version", "samples", "made", "change"]
    assert [line.split(None, 3)[::3] for line in lines] == [
        ["1", "create: 4 samples"],
        ["2", "update: 1 sample"],
        ["3", "delete: 1 sample"],
    ]
    found = json.loads(run("history", store, "--json").output)
    assert [(one["number"], one["samples"]) for one in found] == [(1, 4), (2, 4), (3, 3)]


def test_restore(store: Path) -> None:
    assert run("restore", store, 1).output == "version 4 has the content of version 1\n"
    assert json.loads(run("restore", store, 2, "--json").output) == {"version": 5, "restored": 2}
    assert [s.s for s in sx.open(store)] == ["s0", "new", "s2", "s3"]
    assert "no version 9; the current one is 5" in run("restore", store, 9, code=1).stderr


def test_clean_asks_for_confirmation(store: Path) -> None:
    done = CliRunner().invoke(cli.app, ["clean", str(store), "--grace", "0"], input="n\n")
    assert done.exit_code == 1 and "Remove versions 1 to 2 and the files that no other version uses?" in done.stderr
    assert len(sx.store.history(store)) == 3
    done = CliRunner().invoke(cli.app, ["clean", str(store), "--keep", "2", "--grace", "0"], input="y\n")
    assert done.stdout.endswith("_shardex/00000001.json\nremoved 1 file\n")


def test_clean(store: Path) -> None:
    run("compact", store)
    done = json.loads(run("clean", store, "--yes", "--json").output)
    assert done == {"removed": [f"_shardex/0000000{k}.json" for k in (1, 2, 3)]}, "files are too young"
    assert run("clean", store, "-y", "--grace", 0).output.endswith("removed 4 files\n")
    assert run("clean", store, "-y", "--grace", 0).output == "removed 0 files\n"
    assert [s.s for s in sx.open(store)] == ["new", "s2", "s3"]


def test_compact(store: Path) -> None:
    assert run("compact", store).output == "version 4: compact: 2 fragments into 1\n"
    assert run("compact", store).output.startswith("nothing to do")
    assert json.loads(run("compact", store, "--json").output) == {"version": None}


def test_compact_by_workers(store: Path) -> None:
    assert run("compact", store, "--workers", "2").output == "version 4: compact: 2 fragments into 1\n"
    run("compact", store, "--workers", "0", code=2)


def test_compact_of_a_dataset_with_a_link(store: Path) -> None:
    (store / "data").rename(store.parent / "elsewhere")
    (store / "data").symlink_to(store.parent / "elsewhere")
    assert "-o trust_paths=true" in run("compact", store, code=1).output
    assert "expected the option trust_paths, got version" in run("compact", store, "-o", "version=1", code=1).output
    assert run("compact", store, "-o", "trust_paths=true").output == "version 4: compact: 2 fragments into 1\n"


def test_verify(store: Path, folder: Path) -> None:
    assert run("verify", store).output == "nothing is wrong\n"
    assert json.loads(run("verify", store, "--json").output) == {"problems": [], "leftovers": []}
    assert run("verify", store, "--workers", "2").output == "nothing is wrong\n"
    for format in FORMATS:
        assert run("verify", folder / format).output == "nothing is wrong\n"


def test_verify_lists_what_is_damaged(store: Path) -> None:
    path = Path(sx.open(store).shards([1])[0])
    os.truncate(path, 200)
    (store / "note.txt").write_text("mine")
    size = json.loads((store / "_shardex/00000003.json").read_text())["manifest"]["fragments"][1]["groups"][0]["size"]
    lines = run("verify", store, code=1).output.splitlines()
    assert lines == [
        f"data/{path.name}: expected {size} bytes, got 200; 0 of 1 batches are intact"
        " (samples 1 to 2; fields n, s; versions 1 to 3)",
        "1 problem",
        "1 file (4 bytes) in no version; shardex clean removes those that writers left",
    ]
    found = json.loads(run("verify", store, "--version", 1, "--json", code=1).output)
    assert found["leftovers"] == ["note.txt"]
    (problem,) = found["problems"]
    assert problem["samples"] == [2, 4] and problem["versions"] == [1] and problem["fields"] == ["n", "s"]


def test_verify_jsonl(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{\n')
    assert run("verify", tmp_path / "a.jsonl", code=1).output.startswith("a.jsonl: line 2, column 2")
    assert run("verify", tmp_path, "-o", "decode=text").output == "nothing is wrong\n"


def test_recover(store: Path, tmp_path: Path) -> None:
    path = Path(sx.open(store).shards([1])[0])
    os.truncate(path, 200)
    lost, saved = run("recover", store, tmp_path / "new", code=1).output.splitlines()
    assert lost.startswith(f"lost: data/{path.name}: expected ") and lost.endswith("(samples 1 to 2; fields n, s)")
    assert saved == f"saved 1 sample in {tmp_path / 'new'}"
    assert list(sx.open(tmp_path / "new")) == [{"n": 1, "s": "new"}]
    (store / "_shardex/00000003.json").unlink()
    (store / "_shardex/00000002.json").write_text("")
    found = json.loads(run("recover", store, tmp_path / "again", "--json", code=1).output)
    assert (found["samples"], found["version"], [one["samples"] for one in found["lost"]]) == (2, 1, [[2, 4]])
    assert found["notes"][0].startswith("version 2 is lost")
    words = run("recover", store, tmp_path / "new", code=1).stderr
    assert "there already; name a target that does not exist" in words and "mode=" not in words


def test_recover_without_losses_succeeds(folder: Path, tmp_path: Path) -> None:
    assert run("recover", folder / "arrow", tmp_path / "new").output.startswith("saved 10 samples")


def test_options_that_take_several_names(folder: Path) -> None:
    found = json.loads(run("index", folder / "jsonl", "-o", "attributes=name,n", "--json").output)
    assert found["samples"] == 10
    run("index", folder / "jsonl", "-o", "attributes=name")
    assert (
        "expected rebuild to be true or false, got 'x'"
        in run("index", folder / "jsonl", "-o", "rebuild=x", code=1).stderr
    )


def test_advice_is_given_in_the_form_of_the_command_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    run("index", tmp_path)
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    words = run("info", tmp_path, code=1).stderr
    assert "open with -o rebuild=true" in words
    assert "open with -o rebuild=true" in run("verify", tmp_path, code=1).output
    assert "open with -o rebuild=true" in run("recover", tmp_path, tmp_path.parent / "saved", code=1).output
    run("info", tmp_path, "-o", "rebuild=true")
    assert "`shardex.write` in Python" in run("history", tmp_path, code=1).stderr


@pytest.mark.parametrize("command", ["history", "restore", "clean", "compact"])
def test_versions_of_a_foreign_dataset_raise(folder: Path, command: str) -> None:
    more = {"restore": ["1"], "clean": ["--yes"]}.get(command, [])
    assert "expected a native dataset" in run(command, folder / "jsonl", *more, code=1).stderr


@pytest.mark.parametrize("command", ["verify", "recover"])
def test_missing_dataset(tmp_path: Path, command: str) -> None:
    more = [str(tmp_path / "new")] if command == "recover" else []
    done = run(command, tmp_path / "nowhere", *more, code=1)
    assert done.stderr == f"shardex: no such file or folder: {tmp_path / 'nowhere'}\n"


def test_remedies_are_those_of_the_shell() -> None:
    text = as_options('open one with sx.open("d/train"), all of them with sx.load_dataset("d"), or label=False')
    assert text == 'give the path of one, "d/train", or -o label=false'
    text = as_options('sx.verify("d") lists; sx.recover("d", target) copies')
    assert text == "shardex verify d lists; shardex recover d target copies"
    assert as_options('open with bad_lines="skip"') == "open with -o bad_lines=skip"
    assert as_options("the format of a folder of this name with format=").endswith("with --to")
