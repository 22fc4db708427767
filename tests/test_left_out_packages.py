"""Tests that need a package which is not installed: failures, unless `SHARDEX_WITHOUT` names it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = {
    "test_module.py": "import not_installed\ndef test(): pass",
    "test_function.py": "def test():\n    import not_installed.part",
    "test_fixture.py": "import pytest\n@pytest.fixture\ndef one():\n    import not_installed\ndef test(one): pass",
    "test_mark.py": "import pytest\n@pytest.mark.needs('not_installed')\ndef test(): pass",
    "test_extra.py": """
from shardex.errors import MissingExtraError
def test():
    try:
        import not_installed
    except ImportError:
        raise MissingExtraError("not_installed", "extra", "a test") from None
""",
}
LIBRARY = {"library.py": "import not_installed", "tests/test_library.py": "def test():\n    import library"}


@pytest.mark.parametrize(
    ("without", "outcome"),
    [("", "2 failed, 1 passed, 2 errors"), ("other", "2 failed, 1 passed, 2 errors"), ("not_installed", "5 skipped")],
)
def test_only_what_is_named_is_skipped(without: str, outcome: str, tmp_path: Path) -> None:
    assert f"{outcome} in" in run(without, {f"tests/{name}": text for name, text in TESTS.items()}, tmp_path)


def test_a_library_that_needs_a_package_fails(tmp_path: Path) -> None:
    assert "1 failed in" in run("not_installed", LIBRARY, tmp_path)


def run(without: str, files: dict[str, str], folder: Path) -> str:
    """Run tests in a folder and return what pytest prints."""
    (folder / "tests").mkdir()
    (folder / "pytest.ini").touch()
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "tests.left_out_packages", "-p", "no:cacheprovider"]
    command += ["--continue-on-collection-errors", "tests"]
    paths = os.pathsep.join([str(ROOT), str(folder), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "SHARDEX_WITHOUT": without, "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr
