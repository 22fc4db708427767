"""Packages for programs that tests run: installed once into ``build/``, apart from the packages of the tests."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[1] / "build"


def packages_for(python: str, name: str, packages: Sequence[str], **modules: str) -> Path:
    """Return the folder with these packages and with modules of this text, for `PYTHONPATH`.

    The first call installs them, of several processes one; without a network the test is skipped.
    """
    code = "import sys; print(*sys.version_info[:2], sep='.')"
    version = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    which = hashlib.sha256(repr((packages, modules)).encode()).hexdigest()[:8]
    folder = BUILD / f"{name}-{which}-python{version}"
    BUILD.mkdir(exist_ok=True)
    with open(BUILD / f"{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            part = folder.with_name(f"{folder.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            _install(python, part, name, packages)
            for module, text in modules.items():
                (part / f"{module}.py").write_text(text)
            part.rename(folder)
    return folder


def _install(python: str, folder: Path, name: str, packages: Sequence[str]) -> None:
    options = ["--quiet", "--no-deps", "--no-compile", "--disable-pip-version-check", "--retries=1"]
    command = [python, "-m", "pip", "install", *options, f"--target={folder}", *packages]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{name} cannot be installed: pip took too long")
    if done.returncode:
        pytest.skip(f"{name} cannot be installed: {done.stderr.strip()[-300:]}")
