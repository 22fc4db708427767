"""File systems of the tests' own, real ones: in memory with a size, or ext4 in a file; and whether they can be had.

They are mounted where only this process and those that it starts see them, so they go when it does, even if it is
killed.
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
    """From here on this process sees mounts of its own. Processes that should see them too are started after this."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_OWN_MOUNTS) != 0:
        raise OSError(ctypes.get_errno(), "cannot have mounts of our own")
    _run("mount", "--make-rprivate", "/")


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """A file system at a folder for a while."""
    mount_apart()
    folder.mkdir(exist_ok=True)
    _run("mount", *options, str(folder))
    try:
        yield folder
    finally:
        gc.collect()  # datasets, and with them the files that they have mapped
        try:
            _run("umount", str(folder))
        except OSError:  # after a failure its traceback still has some
            _run("umount", "--lazy", str(folder))


def remount(folder: Path, how: str) -> None:
    """Make a file system read-only (`ro`) or not (`rw`)."""
    _run("mount", "-o", f"remount,{how}", str(folder))


@contextmanager
def memory(folder: Path, size: str) -> Iterator[Path]:
    """A file system in memory that holds so much."""
    with mounted(folder, "-t", "tmpfs", "-o", f"size={size}", "tmpfs") as there:
        yield there


def make_image(image: Path, size: int) -> None:
    """An empty ext4 file system in a file."""
    with image.open("wb") as file:
        file.truncate(size)
    _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))


@contextmanager
def ext4(image: Path, folder: Path) -> Iterator[Path]:
    """The file system in a file. Nothing is written to it but what is synced: the system waits ten minutes."""
    with mounted(folder, "-o", "loop,commit=600", str(image)) as there:
        yield there


def _tried(*command: str) -> str:
    """Why a command fails where mounts go with it; nothing if it does not."""
    done = subprocess.run(["unshare", "--mount", *command], capture_output=True, text=True, check=False)
    return f"needs a system that lets us mount: {done.stderr.strip()}" if done.returncode else ""


@cache
def why_no_memory() -> str:
    """Why no file system of a given size can be mounted; nothing if one can."""
    if os.name != "posix" or os.geteuid() != 0 or not all(map(shutil.which, ("mount", "unshare"))):
        return "needs to be root, and mount (Debian: apt-get install mount)"
    with tempfile.TemporaryDirectory() as folder:
        return _tried("mount", "-t", "tmpfs", "tmpfs", folder)


@cache
def why_no_ext4() -> str:
    """Why no ext4 image can be mounted; nothing if one can."""
    if why_no_memory():
        return why_no_memory()
    if shutil.which("mkfs.ext4") is None:
        return "needs mkfs.ext4 (Debian: apt-get install e2fsprogs)"
    with tempfile.TemporaryDirectory() as folder:
        make_image(Path(folder) / "image", 4 << 20)
        (Path(folder) / "m").mkdir()
        return _tried("mount", "-o", "loop", f"{folder}/image", f"{folder}/m")
