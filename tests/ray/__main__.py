"""Runs pytest, with the arguments of the command line, where there is only loopback."""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.ray import ROOT, namespace_command

with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # paths of sockets must be short
    tests = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *sys.argv[1:]]
    done = subprocess.run(namespace_command(Path(folder), *tests), cwd=ROOT, check=False)
sys.exit(done.returncode)
