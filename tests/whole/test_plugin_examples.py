"""The packages in examples/plugins: installed by pip, they pass the suites of `shardex.testing` and their own tests."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.parent for path in (ROOT / "examples" / "plugins").glob("*/pyproject.toml"))


def run(*command: str, cwd: Path, **variables: str) -> None:
    done = subprocess.run(  # noqa: PLW1510 - the assert has the output
        command, cwd=cwd, env={**os.environ, **variables}, capture_output=True, text=True
    )
    assert not done.returncode, f"{command}:\n{done.stdout}\n{done.stderr}"


@pytest.mark.needs("setuptools")
@pytest.mark.timeout(400)  # each is built, and their tests start processes
def test_packages_are_installed_and_pass_their_suites(tmp_path: Path) -> None:
    for package in PACKAGES:  # pip builds in the folder of a package
        shutil.copytree(package, tmp_path / package.name)
    copies = [str(tmp_path / package.name) for package in PACKAGES]
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    offline = ("--no-index", "--no-deps", "--no-build-isolation")
    run(*pip, "install", *offline, "--target", str(tmp_path / "site"), *copies, cwd=tmp_path)
    path = os.pathsep.join([str(tmp_path / "site"), str(ROOT / "src")])
    tests = sorted(str(test) for copy in copies for test in Path(copy).glob("test_*.py"))
    pytest_command = (sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(tmp_path))
    run(*pytest_command, "-p", "no:cacheprovider", *tests, cwd=tmp_path, PYTHONPATH=path)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_packages_are_small_and_use_public_names(package: Path) -> None:
    files = [*package.rglob("*.py"), *package.rglob("*.toml")]
    text = "".join(path.read_text("utf-8") for path in files if not path.name.startswith("test_"))
    assert len(text.splitlines()) < 100
    assert not re.findall(r"from shardex\.\w+\.\w+ import|from shardex\S* import _", text), "only doors are public"


def test_the_guide_shows_the_packages() -> None:
    page = (ROOT / "docs" / "extend.md").read_text("utf-8")
    shown = re.findall(r"```python\n# (\S+\.py)\n(.*?)```", page, re.DOTALL)
    assert len(shown) >= 6
    assert all((ROOT / "examples" / "plugins" / path).read_text("utf-8") == text for path, text in shown)


def test_shardex_does_not_know_the_packages() -> None:
    names = {path.parent.name for package in PACKAGES for path in package.glob("*/__init__.py")}
    source = "".join(path.read_text("utf-8") for path in (ROOT / "src" / "shardex").rglob("*.py"))
    assert not [name for name in names if re.search(rf"\b{name}\b", source)]
