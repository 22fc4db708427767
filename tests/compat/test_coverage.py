"""Every name that the documents of the five systems promise is there, and the printed table names it."""

import subprocess
import sys
from pathlib import Path

import pytest

from shardex.compat.coverage import SYSTEMS, covered, resolve

APIS = Path(__file__).parent / "apis"


def promised(system: str) -> list[str]:
    """The names in the API list of a system: dotted, one a line; lines with # are comments."""
    lines = (line.strip() for line in (APIS / f"{system}.txt").read_text("utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_promised_name_is_covered(system: str) -> None:
    names = promised(system)
    assert names and len(names) == len(set(names))
    assert [name for name in names if name not in {one.name for one in covered(system)}] == []


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_covered_name_exists(system: str) -> None:
    for one in covered(system):
        resolve(system, one.name)
        assert one.served_by


@pytest.mark.parametrize("name", ["Unknown", "SplitDataLoader.unknown", "unknown.SplitDataLoader"])
def test_name_that_is_not_there_is_not_resolved(name: str) -> None:
    with pytest.raises(AttributeError, match=f"shardex.compat.splitdataloader has no {name}$"):
        resolve("splitdataloader", name)


def printed(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "shardex.compat", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_command_prints_every_name() -> None:
    done = printed()
    assert done.returncode == 0
    for system in SYSTEMS:
        assert f"{system}: " in done.stdout
        assert all(one.name in done.stdout for one in covered(system))


def test_command_prints_one_system_in_columns() -> None:
    done = printed("splitdataloader")
    head, *rest = done.stdout.splitlines()
    names = covered("splitdataloader")
    assert head == f"splitdataloader: {len(names)} names"
    column = rest[0].index(names[0].served_by)
    assert [(line[:column].strip(), line[column:]) for line in rest] == [(one.name, one.served_by) for one in names]


def test_command_ends_quietly_if_nobody_reads_on() -> None:
    command = f"{sys.executable} -m shardex.compat | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_command_names_the_systems_that_it_knows() -> None:
    done = printed("atdata", "data-forager")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("expected one of the systems synthefy_dataset_utils, atdata, data_forager, ")
    assert done.stderr.endswith("got 'data-forager': did you mean 'data_forager'?\n")
