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
    assert [name for name in promised(system) if name not in {one.name for one in covered(system)}] == []


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_covered_name_exists(system: str) -> None:
    for one in covered(system):
        resolve(system, one.name)


def test_command_prints_every_name() -> None:
    text = subprocess.run([sys.executable, "-m", "shardex.compat"], check=True, capture_output=True, text=True).stdout
    for system in SYSTEMS:
        assert f"{system}: " in text
        assert all(one.name in text for one in covered(system))
