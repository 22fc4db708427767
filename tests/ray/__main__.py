"""Runs pytest, with the arguments of the command line, where there is only loopback."""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.ray import ROOT, namespace_command

OPTIONS = ["-p", "no:cacheprovider", "--timeout=600", "--show-capture=no", "--disable-warnings"]
"""Ray logs and warns a lot."""

with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # paths of sockets must be short
    tests = [sys.executable, "-m", "pytest", *OPTIONS, *sys.argv[1:]]
    done = subprocess.run(namespace_command(Path(folder), *tests), cwd=ROOT, check=False)
sys.exit(done.returncode)
