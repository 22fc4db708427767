"""The documentation is executed: a page's blocks run in order, in one namespace and one empty folder.

```` ```python ```` blocks are run. In ```` ```console ```` blocks each ``$ command`` must succeed and print what the
page shows; there ``...`` stands for any text within a line, or, alone on a line, for any lines. Only a block that
gives its reason is left out: ```` ```python no-run: needs a cluster ````.
"""

import os
import re
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^ *```(python|console)\b *(.*)\n((?:.*\n)*?) *```$", re.MULTILINE)


class Block(NamedTuple):
    language: str
    remark: str
    text: str
    line: int
    """Number of the block's first line in its page."""


def blocks_of(page: str) -> list[Block]:
    """
    >>> blocks_of('''Say:
    ... ```python no-run: an example
    ... print("hi")
    ... ```
    ... ''')
    [Block(language='python', remark='no-run: an example', text='print("hi")\\n', line=3)]
    """
    return [
        Block(m[1], m[2].strip(), textwrap.dedent(m[3]), page.count("\n", 0, m.start(3)) + 1)
        for m in FENCE.finditer(page)
    ]


def commands_of(transcript: str) -> Iterator[tuple[str, str]]:
    """Each command with the output shown under it.

    >>> list(commands_of("$ echo a\\\\\\n b\\na b\\n$ true\\n"))
    [('echo a\\\\\\n b', 'a b\\n'), ('true', '')]
    """
    for m in re.finditer(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", transcript, re.MULTILINE):
        yield m[1], m[2]


def matches(shown: str, printed: str) -> bool:
    """
    >>> matches("a\\n...\\nd in ... ms\\n", "a\\nb\\nc\\nd in 5 ms\\n")
    True
    >>> matches("a\\n", "a\\nb\\n")
    False
    """
    lines = (line.rstrip() for line in shown.rstrip().splitlines())
    pattern = [r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + "\n" for line in lines]
    printed = "".join(line.rstrip() + "\n" for line in printed.rstrip().splitlines())
    return re.fullmatch("".join(pattern), printed) is not None


def run_command(command: str, shown: str, where: str) -> None:
    scripts = sysconfig.get_path("scripts")
    environment = os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{where}: `{command}` failed with {done.returncode}\n{done.stdout}{done.stderr}"
    assert matches(shown, done.stdout), f"{where}: `{command}` should print\n{shown}\nbut printed\n{done.stdout}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_page(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("__main__")  # as in a script: annotations are looked up there, workers get its functions whole
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.chdir(tmp_path)
    for block in blocks_of(path.read_text("utf-8")):
        where = f"{path.name}:{block.line}"
        if block.remark:
            assert re.match(r"no-run\W+\w", block.remark), f"{where}: expected `no-run: reason`, got `{block.remark}`"
        elif block.language == "python":
            above = "\n" * (block.line - 1)  # so that a traceback shows the line of the page
            exec(compile(above + block.text, path, "exec", dont_inherit=True), vars(module))
        else:
            for command, shown in commands_of(block.text):
                run_command(command, shown, where)


def test_readme_shows_both() -> None:
    assert {block.language for block in blocks_of(PAGES[0].read_text("utf-8"))} == {"python", "console"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Links to files of the project, not to the web."""
    links = re.findall(r"\]\(([^)#]+)", page.read_text("utf-8"))
    lost = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not lost
