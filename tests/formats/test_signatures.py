"""Files are recognised by signatures, those of other packages too, and no format is imported for it."""

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shardex as sx
from shardex.errors import FormatError, NotFoundError, PluginError, UnknownFormatError
from shardex.files import find
from shardex.formats import FORMATS, Format, Signature, format_named, format_names, recognise
from shardex.formats.media_folders import EXTENSIONS as MEDIA
from tests.installed_packages import Install, install

__all__ = ["install"]

SIGNATURE = """
from shardex.formats import Signature
SIGNATURE = Signature(format="weather_shards:FORMAT", extensions=(".wea",), markers=("weather.dat",), magic=(b"WEA1",))
"""
SHARDS = """
from shardex.formats import Format, format_named
jsonl = format_named("jsonl")
FORMAT = Format(lambda files, *, schema=None: jsonl.open(files, schema=schema), jsonl.create, jsonl.join)
"""
MODULES = {"weather": SIGNATURE, "weather_shards": SHARDS}
ENTRY = {"shardex.formats:weather": "weather:SIGNATURE"}

COUNT = """
import sys
def loaded(): return {name for name in sys.modules if name.partition(".")[0] == "shardex"}
import shardex as sx
"""


def run(code: str, *arguments: str) -> list[int]:
    done = subprocess.run([sys.executable, "-c", COUNT + code, *arguments], capture_output=True, text=True, check=True)
    return list(map(int, done.stdout.split()))


def test_recognising_imports_no_format(tmp_path: Path) -> None:
    sx.write(tmp_path / "native", [{"x": 1}])
    sx.write(tmp_path / "lines", [{"x": 1}], format="jsonl")
    native, recognised, scans = run(
        "from shardex import plugins; sx.open(sys.argv[1]); before = loaded()\n"
        "scans = plugins._entry_points.cache_info().misses\n"
        "from shardex.files import find; from shardex.formats import recognise\n"
        "assert recognise(find(sys.argv[2])) == 'jsonl'\n"
        "print(len(before), len(loaded() - before), scans)",
        str(tmp_path / "native"),
        str(tmp_path / "lines"),
    )
    assert native <= 260 and recognised <= 3, "signatures of compat, and nothing else"
    assert scans == 0, "native datasets are recognised without the entry points of other packages"


@pytest.mark.parametrize("name", FORMATS)
def test_every_line_of_the_table_names_a_format(name: str) -> None:
    assert isinstance(format_named(name), Format)


def test_media_files_are_those_of_the_table() -> None:
    assert sorted(FORMATS["folder"].extensions) == sorted(MEDIA)


@pytest.mark.parametrize(
    ("signature", "names", "expected"),
    [
        ({"extensions": (".a",)}, ["x.A", "y.b"], 1),
        ({"extensions": (".a",)}, [".x.a", "_y/z.a"], 0),
        ({"every": (".a",)}, ["x.a", "y.a"], 1),
        ({"every": (".a",)}, ["x.a", "y.b"], 0),
        ({"every": (".a",), "beside": (".b",)}, ["x.a", "x.b", "README.md"], 1),
        ({"every": (".a",), "beside": (".b",)}, ["x.a", "y.b"], 0),
        ({"every": (".a",), "beside": (".b",)}, ["y.b"], 0),
        ({"markers": ("m.json",)}, ["m.json", "x.b"], 2),
        ({"markers": ("m/",)}, ["m/x", "x.b"], 2),
        ({"markers": ("m.json",)}, ["below/m.json"], 0),
        ({"extensions": (".a",), "magic": (b"XX", b"x")}, ["x.a"], 2),
        ({"extensions": (".a",), "magic": (b"y",)}, ["x.a"], 0),
        ({"every": (".a", ".i"), "magic": (b"y",), "magic_of": ".i"}, ["x.a", "y.i"], 2),
        ({"every": (".a", ".i"), "magic": (b"y",), "magic_of": ".i"}, ["y.a"], 0),
        ({"extensions": (".a",), "check": "tests.formats.test_signatures:sure"}, ["x.a"], 2),
        ({"extensions": (".a",), "check": "tests.formats.test_signatures:nowhere"}, ["x.b"], 0),
    ],
)
def test_signatures(tmp_path: Path, signature: dict[str, object], names: list[str], expected: int) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(Path(name).name.encode())  # so a file begins with its name
    assert Signature(format="", **signature).match(find(tmp_path)) == expected  # type: ignore[arg-type]


def sure(files: object) -> int:
    return 2


# -- folders --------------------------------------------------------------------------------------------------


def lines(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"x": 1}\n')
    return folder


@pytest.mark.parametrize("other", ["a.txt", "a.csv", "b/a.md", "a.json", "a.parquet", "a.xml", "a.bin", "data", "a.py"])
def test_files_of_another_kind_are_not_left_out_in_silence(tmp_path: Path, other: str) -> None:
    lines(tmp_path, "1.jsonl", "2.jsonl", other)
    kind = Path(other).suffix or r"\(no extension\)"
    message = (
        rf'to have one format, got 3 files \(2 \.jsonl, 1 {kind}\); choose .* format="jsonl".* a pattern such as "'
    )
    for opened in (sx.open, sx.load_dataset):
        with pytest.raises(UnknownFormatError, match=message):
            opened(tmp_path)
    assert len(sx.open(tmp_path, format="jsonl")) == len(sx.open(f"{tmp_path}/*.jsonl")) == 2
    assert len(sx.load_dataset(tmp_path, format="jsonl")["train"]) == 2


def test_plain_tars_beside_compressed_ones_are_read_by_compressed_copy(tmp_path: Path) -> None:
    sx.write(tmp_path / "a.tar", [{"txt": "a"}])
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress((tmp_path / "a.tar").read_bytes()))
    with pytest.raises(UnknownFormatError, match=r'2 files \(1 \.tar, 1 \.gz\); .* format="tar".* compressed="copy"'):
        sx.open(tmp_path)
    assert len(sx.open(tmp_path, compressed="copy")) == 2
    lines(tmp_path, "1.jsonl")
    with pytest.raises(UnknownFormatError, match=r"1 \.jsonl") as raised:
        sx.open(tmp_path)
    assert "compressed=" not in str(raised.value)


def test_files_that_describe_data_may_lie_beside_it(tmp_path: Path) -> None:
    names = [
        "README.md",
        "readme_zh.md",
        "LICENSE",
        "LICENSE-CC.txt",
        "dataset_card.md",
        "dataset_infos.json",
        "SHA256SUMS",
    ]
    names += [
        "1.jsonl.md5",
        "metadata.csv",
        "stats.json",
        "config.yaml",
        "classes.txt",
        ".hidden.csv",
        "_done",
        "logo.png",
    ]
    lines(tmp_path, "1.jsonl", *names)
    assert len(sx.open(tmp_path)) == len(sx.load_dataset(tmp_path)["train"]) == 1
    lines(tmp_path / "text", *names)
    (tmp_path / "text" / "1.txt").write_text("a\nb\n")
    assert sx.open(tmp_path / "text", format="text").features == sx.open(tmp_path / "text" / "1.txt").features


def test_a_table_called_metadata_is_data_if_there_is_no_other(tmp_path: Path) -> None:
    assert len(sx.open(lines(tmp_path, "metadata.jsonl", "README.md"))) == 1


def test_a_list_of_files_of_several_formats(tmp_path: Path) -> None:
    lines(tmp_path, "cars.json", "stocks.csv")
    with pytest.raises(
        UnknownFormatError, match=r'of one format, got 2 files \(1 \.json, 1 \.csv\); .*"jsonl" or .*"csv"'
    ):
        sx.open([tmp_path / "cars.json", tmp_path / "stocks.csv"])
    with pytest.raises(UnknownFormatError, match="of one format"):
        sx.open(f"{tmp_path}/*s.*")


SPLITS = [
    ("train/1.jsonl", "test/1.jsonl"),
    ("wiki-train-0.jsonl", "wiki-val.jsonl", "more.jsonl"),
    ("en/dev.txt", "en/test.txt"),
]


@pytest.mark.parametrize("names", SPLITS)
def test_files_of_several_splits_are_not_joined_in_silence(tmp_path: Path, names: tuple[str, ...]) -> None:
    lines(tmp_path, *names)
    message = (
        r'expected the files of one split, got .*sx\.open\("(.*)"\), .*sx\.load_dataset\(.* pattern such as "(.*)"'
    )
    with pytest.raises(UnknownFormatError, match=message) as caught:
        sx.open(tmp_path)
    one, pattern = re.findall('"([^"]*)"', str(caught.value))[::2]
    assert len(sx.open(pattern)) == len(names)
    assert len(sx.open(one)) == 1
    assert sum(map(len, sx.load_dataset(tmp_path).values())) == len(names)


def test_files_of_one_split_and_others_are_one_dataset(tmp_path: Path) -> None:
    assert len(sx.open(lines(tmp_path, "train/1.jsonl", "train/2.jsonl", "3.jsonl"))) == 3


def test_hidden_files_are_not_counted(tmp_path: Path) -> None:
    lines(tmp_path, "1.jsonl")
    sx.open(tmp_path)
    (tmp_path / "1.jsonl").rename(tmp_path / "a.xyz")
    with pytest.raises(UnknownFormatError, match=r"got 1 file \(1 \.xyz\), a\.xyz beginning with"):
        sx.open(tmp_path)


# -- formats of other packages --------------------------------------------------------------------------------


def test_a_format_of_another_package(tmp_path: Path, install: Install) -> None:
    install("shardex-weather", ENTRY, MODULES)
    assert format_names()[-1] == "weather"
    sx.write(tmp_path / "d", [{"t": 1.5}], format="weather")
    (tmp_path / "d" / "weather.dat").touch()
    assert "weather_shards" in sys.modules
    ds = sx.open(tmp_path / "d")
    assert ds[0].t == 1.5 and "weather" in repr(ds)
    with pytest.raises(UnknownFormatError, match=r"expected a format out of .*weather, got 'wether': did you mean 'w"):
        sx.open(tmp_path / "d", format="wether")


def test_files_of_two_packages(tmp_path: Path, install: Install) -> None:
    text = SIGNATURE.replace(', magic=(b"WEA1",)', "").replace(".wea", ".jsonl")
    install("shardex-weather", ENTRY, {"weather": text})
    (tmp_path / "a.jsonl").write_text("{}\n")
    with pytest.raises(UnknownFormatError, match=r'format="jsonl" or format="weather"'):
        sx.open(tmp_path / "a.jsonl")


@pytest.mark.parametrize("text", ["import no_such_module", "SIGNATURE = 5", "x = 5"])
def test_a_package_that_cannot_be_used(tmp_path: Path, install: Install, text: str) -> None:
    install("shardex-weather", ENTRY, {"weather": text})
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    message = "weather, which the package shardex-weather adds to shardex.formats: expected weather:SIGNATURE"
    with pytest.warns(UserWarning, match=f"cannot recognise the format {message}"):
        assert recognise(find(tmp_path / "a.jsonl")) == "jsonl"
    with pytest.raises(PluginError, match=message):
        sx.open(tmp_path / "a.jsonl", format="weather")
    with pytest.raises(NotFoundError):
        sx.open(tmp_path / "b.jsonl", decode="text")


@pytest.mark.parametrize("body", ["1 / 0", "return None"])
def test_a_package_whose_check_fails(tmp_path: Path, install: Install, body: str) -> None:
    text = f'{SIGNATURE[:-2]}, check="weather:check")\ndef check(files): {body}\n'
    install("shardex-weather", ENTRY, {"weather": text.replace(".wea", ".jsonl")})
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    with pytest.warns(UserWarning, match=r"the format weather, .* shardex-weather .*: expected its check"):
        assert recognise(find(tmp_path / "a.jsonl")) == "jsonl"


def test_errors_of_files_in_the_check_of_a_package(tmp_path: Path, install: Install) -> None:
    check = "from shardex.errors import FormatError\ndef check(files): raise FormatError('expected a whole index')\n"
    text = f'{SIGNATURE[:-2]}, check="weather:check")\n{check}'
    install("shardex-weather", ENTRY, {"weather": text})
    (tmp_path / "a.wea").touch()
    with pytest.raises(FormatError, match="expected a whole index"):
        sx.open(tmp_path / "a.wea")


def test_formats_of_packages_are_asked_after_the_native_one(tmp_path: Path, install: Install) -> None:
    install("shardex-weather", ENTRY, MODULES)
    for name, expected in {"tokens.json": "weather", "_shardex/00000001.json": "arrow"}.items():
        (tmp_path / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / name).write_text("{}")
        (tmp_path / "d" / "weather.dat").touch()
        assert recognise(find(tmp_path / "d")) == expected


def test_metadata_of_shardex_without_its_formats(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    code = """
import importlib.metadata, sys, warnings
importlib.metadata.entry_points = lambda *, group: ()
warnings.simplefilter("error")
import shardex as sx
try:
    sx.open(sys.argv[1])
except UserWarning as warning:
    print(warning)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "a.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "expected formats in the metadata of the package shardex (shardex.formats), got none" in done.stdout


def test_a_name_of_a_format_of_shardex(tmp_path: Path, install: Install) -> None:
    install("shardex-weather", {"shardex.formats:jsonl": "weather:SIGNATURE"}, MODULES)
    with pytest.raises(PluginError, match=r"jsonl, which the package shardex-weather .* as shardex has one"):
        format_names()


def test_a_name_of_two_packages(tmp_path: Path, install: Install) -> None:
    install("shardex-weather", ENTRY, MODULES)
    install("weather-too", ENTRY, {})
    with pytest.raises(PluginError, match=r"the package weather-too adds .* as shardex-weather adds the same"):
        format_named("weather")


def test_the_command_runs_beside_a_package_that_cannot_be_used(tmp_path: Path, install: Install) -> None:
    install("shardex-weather", {"shardex.formats:jsonl": "weather:SIGNATURE"}, MODULES)
    sx.write(tmp_path / "native", [{"x": 1}])
    (tmp_path / "a.jsonl").write_text("{}\n")
    command = (sys.executable, "-m", "shardex", "info")
    path = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)])}
    done = subprocess.run([*command, str(tmp_path / "native")], env=path, capture_output=True, text=True, check=True)
    assert "1" in done.stdout
    done = subprocess.run([*command, str(tmp_path / "a.jsonl")], env=path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "the package shardex-weather adds" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("left", [".0123456789abcdef.tmp", ".shardex/x"])
def test_what_a_killed_writer_left(tmp_path: Path, left: str) -> None:
    (tmp_path / left).parent.mkdir(exist_ok=True)
    (tmp_path / left).write_bytes(b"")
    with pytest.raises(UnknownFormatError, match=r"finished dataset, got only hidden .* writer did not finish"):
        sx.open(tmp_path)
