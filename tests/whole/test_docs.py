"""Runs the code blocks of README.md and docs/*.md: those of one page in order, in one namespace and one empty folder.

```` ```python ```` blocks are executed. In ```` ```console ```` blocks each ``$ command`` must succeed and print the
output shown under it; ``...`` matches any text within a line or, alone on a line, any number of lines. A block is
skipped only if its fence gives a reason: ```` ```python no-run: needs a cluster ````. Those that need a Ray cluster run
where there is one, and ```` ```python needs litdata ```` runs where that package can be imported. The PNG files that a
page shows are those that its blocks write under the same name.
"""

import ast
import gc
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

from shardex.media import decode_image

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LONG = ("accelerate.md", "ddp.md", "lightning.md", "trainer.md")
"""Pages about frameworks that take many seconds to import, or with several processes that import torch."""
ROOMS = {door.parent.name for door in (ROOT / "src" / "shardex").glob("*/__init__.py")}
FENCE = re.compile(r"^ *```(python|console)\b *(.*)\n((?:.*\n)*?) *```$", re.MULTILINE)


class Block(NamedTuple):
    language: str
    remark: str
    text: str
    line: int
    """Line number of the block's first line in its page."""


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
    """Yield each command with the output shown under it.

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


ABORTED = "terminate called without an active exception"
"""What torch 2.13 prints, also without shardex, if a thread of gloo frees its last tensor while the interpreter ends:
`ProcessGroupGloo::runLoop` then waits for the GIL. Such a run of `torchrun` is repeated."""


def run_command(command: str, shown: str, where: str) -> None:
    scripts = sysconfig.get_path("scripts")
    environment = os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100", "NO_COLOR": "1"}
    for _ in range(3):
        before = set(os.listdir())
        done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True, check=False)
        if "torchrun" not in command or ABORTED not in done.stderr:
            break
        for folder in set(os.listdir()) - before:
            shutil.rmtree(folder)
    assert done.returncode == 0, f"{where}: `{command}` failed with {done.returncode}\n{done.stdout}{done.stderr}"
    assert matches(shown, done.stdout), f"{where}: `{command}` should print\n{shown}\nbut printed\n{done.stdout}"


def execute(block: Block, page: Path, module: ModuleType) -> None:
    above = "\n" * (block.line - 1)  # so that a traceback shows line numbers of the page
    exec(compile(above + block.text, page, "exec", dont_inherit=True), vars(module))


def execute_for_another_library(block: Block, page: Path, module: ModuleType) -> None:
    """Its own warnings, and files that it leaves open, are no defects of this project."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        execute(block, page, module)
        gc.collect()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module to run blocks in, as in a script: annotations resolve there, and workers get its functions by value."""
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.chdir(tmp_path)
    return module


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.name, marks=[pytest.mark.long] * (path.name in LONG)) for path in PAGES]
)
def test_blocks_of_page_run(path: Path, module: ModuleType) -> None:
    for block in blocks_of(path.read_text("utf-8")):
        where = f"{path.name}:{block.line}"
        if needed := re.fullmatch(r"needs (\w+)", block.remark):
            if importlib.util.find_spec(needed[1]) is not None:
                execute_for_another_library(block, path, module)
        elif block.remark:
            assert re.match(r"no-run\W+\w", block.remark), f"{where}: expected `no-run: reason`, got `{block.remark}`"
        elif block.language == "python":
            execute(block, path, module)
        else:
            for command, shown in commands_of(block.text):
                run_command(command, shown, where)
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+\.png)\)", path.read_text("utf-8")):
        check_picture(path.parent / picture, Path(picture).name)


def check_picture(committed: Path, made: str) -> None:
    """Check that the blocks of a page have written the picture that the page shows; letters may differ a little."""
    pytest.importorskip("PIL")
    shown, found = (decode_image(Path(one).read_bytes()).astype(np.int64) for one in (committed, made))
    assert shown.shape == found.shape and abs(shown - found).mean() < 3, f"{committed.name}: copy it from {made}"


def test_blocks_that_need_ray_run(ray_cluster: Any, module: ModuleType) -> None:
    """In prepare.md; they use what the first block defines."""
    page = ROOT / "docs" / "prepare.md"
    first, *others = [block for block in blocks_of(page.read_text("utf-8")) if block.language == "python"]
    needing = [block for block in others if block.remark == "no-run: needs a Ray cluster"]
    assert needing
    for block in (first, *needing):
        execute(block, page, module)


def test_readme_has_python_and_console_blocks() -> None:
    assert {block.language for block in blocks_of(PAGES[0].read_text("utf-8"))} == {"python", "console"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_local_links_exist(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", page.read_text("utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("document", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_named_modules_and_classes_exist(document: str) -> None:
    """Every `room/module.py` exists, and in "`Name` (`room/module.py`)" the module defines the name."""
    page, package = (ROOT / document).read_text("utf-8"), ROOT / "src" / "shardex"
    paths = {path for path in re.findall(r"`(\w+/\w+\.py)`", page) if path.partition("/")[0] in ROOMS}
    names = re.findall(r"`(\w+)[\w.()]*`\s+(?:\(|in\s)`(\w+/\w+\.py)`", page)
    assert paths and names
    assert not [path for path in paths if not (package / path).exists()]
    assert not [(name, path) for name, path in names if not defines(package / path, name)]


def defines(module: Path, name: str) -> bool:
    """Whether a module defines a class, function or constant at its top level."""
    return re.search(rf"^(?:class |def )?{name}\b", module.read_text("utf-8"), re.MULTILINE) is not None


ELSEWHERE = {"np.savez", "numpy.memmap", "to_pandas_dtype", "async", "z_stream"}
"""Names of other packages, which docstrings give as names of code."""
EXAMPLES = {"part2", "part10", "year", "lang", "pyproject.toml"}


def test_docstrings_name_what_exists() -> None:
    """Each `name` in a docstring is in the code of the package, or a module: a renamed one is found here."""
    package = ROOT / "src" / "shardex"
    known, named = {"py", "c", *(path.stem for path in package.rglob("*.c"))}, set[str]()
    for path in package.rglob("*.py"):
        known.update(path.relative_to(package.parent).with_suffix("").parts)
        source = path.read_text("utf-8")
        nodes = [one for one in ast.walk(ast.parse(source)) if isinstance(one, ast.Expr)]
        texts = [one.value for one in nodes if isinstance(one.value, ast.Constant) and isinstance(one.value.value, str)]
        of_texts = {number for one in texts for number in range(one.lineno, (one.end_lineno or one.lineno) + 1)}
        code = [line for number, line in enumerate(source.splitlines(), 1) if number not in of_texts]
        known.update(re.findall(r"\w+", "\n".join(code)))
        named.update(name for one in texts for name in re.findall(r"(?<!`)`([A-Za-z_][\w.]*)`(?!`)", str(one.value)))
    assert not {name for name in named - ELSEWHERE - EXAMPLES if not known.issuperset(name.split("."))}
