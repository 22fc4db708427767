"""Real file systems for tests: in memory with a limited size, or ext4 in a file; and whether they can be mounted.

They are mounted in a mount namespace of this process and its children, so they end with it, even if it is killed.
"""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_OWN_MOUNTS = 0x00020000  # CLONE_NEWNS


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


@cache
def mount_apart() -> None:
    """Enter a new mount namespace; only processes that are started later see its mounts."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_OWN_MOUNTS) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter a mount namespace")
    _run("mount", "--make-rprivate", "/")


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """Mount a file system at a folder while the block runs."""
    mount_apart()
    folder.mkdir(exist_ok=True)
    _run("mount", *options, str(folder))
    try:
        yield folder
    finally:
        gc.collect()  # closes datasets and the files that they have mapped
        try:
            _run("umount", str(folder))
        except OSError:  # the traceback of a failure may hold some
            _run("umount", "--lazy", str(folder))


def remount(folder: Path, how: str) -> None:
    """Make a file system read-only (`ro`) or not (`rw`)."""
    _run("mount", "-o", f"remount,{how}", str(folder))


@contextmanager
def memory(folder: Path, size: str) -> Iterator[Path]:
    """Mount a file system in memory of this size."""
    with mounted(folder, "-t", "tmpfs", "-o", f"size={size}", "tmpfs") as there:
        yield there


def make_image(image: Path, size: int) -> None:
    """Make an empty ext4 file system in a file."""
    with image.open("wb") as file:
        file.truncate(size)
    _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))


@contextmanager
def ext4(image: Path, folder: Path) -> Iterator[Path]:
    """Mount an image; the kernel writes unsynced data after ten minutes at the earliest."""
    with mounted(folder, "-o", "loop,commit=600", str(image)) as there:
        yield there


def _tried(*command: str) -> str:
    """Return why a command fails in a new mount namespace; empty if it does not."""
    done = subprocess.run(["unshare", "--mount", *command], capture_output=True, text=True, check=False)
    return f"needs a system that lets us mount: {done.stderr.strip()}" if done.returncode else ""


@cache
def why_no_memory() -> str:
    """Return why no file system in memory can be mounted; empty if one can."""
    if os.name != "posix" or os.geteuid() != 0 or not all(map(shutil.which, ("mount", "unshare"))):
        return "needs to be root, and mount (Debian: apt-get install mount)"
    with tempfile.TemporaryDirectory() as folder:
        return _tried("mount", "-t", "tmpfs", "tmpfs", folder)


@cache
def why_no_ext4() -> str:
    """Return why no ext4 image can be mounted; empty if one can."""
    if why_no_memory():
        return why_no_memory()
    if shutil.which("mkfs.ext4") is None:
        return "needs mkfs.ext4 (Debian: apt-get install e2fsprogs)"
    with tempfile.TemporaryDirectory() as folder:
        make_image(Path(folder) / "image", 4 << 20)
        (Path(folder) / "m").mkdir()
        return _tried("mount", "-o", "loop", f"{folder}/image", f"{folder}/m")
