"""Runs a command in a new network namespace, after its loopback interface was switched on."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys

from tests.ray import INSIDE

_SET_FLAGS, _UP_AND_RUNNING = 0x8914, 0x41  # SIOCSIFFLAGS, IFF_UP | IFF_RUNNING


def main(folder: str, *command: str) -> int:
    """Run the command, with Ray's files in the folder; return its exit code."""
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP_AND_RUNNING))
    own = {INSIDE: folder, "RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    own["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = "0"  # one process less for each run
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "RAY_"))}
    return subprocess.run(command, env=kept | own, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
