"""Progress bars in notebooks and elsewhere."""

import subprocess
import sys
from pathlib import Path

import pytest

KERNEL = """
import sys, types
def module(name, **content):
    sys.modules[name] = found = types.ModuleType(name)
    vars(found).update(content)
    return found
class ZMQInteractiveShell: pass
module("ipykernel.zmqshell")
shown = module("IPython.display", display=lambda box: print("shown"))
module("IPython", get_ipython=ZMQInteractiveShell).display = shown
"""
WIDGETS = """
class Widget:
    def __init__(self, children=(), **options):
        self.children, self.layout, self.style = children, types.SimpleNamespace(), types.SimpleNamespace()
        self.value = self.bar_style = None
        vars(self).update(options)
    def close(self): pass
module("ipywidgets", HTML=Widget, FloatProgress=Widget, HBox=Widget)
"""
NO_WIDGETS = "sys.modules['ipywidgets'] = None\n"
USE = """
from shardex.progress import Bar
with Bar(total=3, desc="index", disable=None) as bar:
    bar.update(3)
    print(any(one.__module__ == "tqdm.notebook" for one in Bar.__mro__), bar.disable)
"""


@pytest.mark.parametrize(
    ("before", "found", "plain"),
    [
        pytest.param(
            KERNEL + WIDGETS, "shown\nTrue False\n", False, marks=pytest.mark.needs("IPython")
        ),  # a newer tqdm
        (KERNEL + NO_WIDGETS, "False False\n", True),
        ("", "False True\n", False),
    ],
)
def test_notebooks_get_their_bar_and_never_a_warning(before: str, found: str, plain: bool) -> None:
    command = [sys.executable, "-W", "error", "-c", before + USE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    assert done.stdout == found and ("index: 100%" in done.stderr) == plain, done
    assert plain or not done.stderr
