"""Change random lines of the package, one at a time, and report which changes `make test` and `make test-all` find.

Usage: ``python -m tests.mutate [--count 150] [--seed 0] [--room loader] [--compat] [--again]``, in the repository.

1. The tests run once on a copy of the project in which each block of statements (the body of a function, a branch, a
   loop) sets a byte when it begins. This tells which tests execute which block, also in processes that they start. The
   result stays in `build/mutate` until the option ``--again``, or until the sources are others. Blocks that only tests
   with the mark `long` execute are printed: `make test` lacks a test there. ``--count 0`` does only this.
2. Random lines are drawn, and for each one change: another comparison, arithmetic or boolean operator, a constant plus
   or minus 1, a condition negated, a statement dropped, two arguments swapped, an early return.
3. Each change is made in a copy of its own. The tests that execute its block run until one fails: those of `make test`,
   then those that only `make test-all` runs; first those that execute little besides.

What it does not see: statements of modules and classes belong to all tests that call a function of the module; what a
session fixture or a cache computes belongs to the test that needs it first. The tests of one change take at
most ``--seconds`` of CPU time in each suite. Changes that no test finds are printed too: a part of them change nothing
that can be seen (a boundary of a heuristic, the size of a buffer), the others lack a test.
"""

from __future__ import annotations

import argparse
import ast
import base64
import concurrent.futures
import hashlib
import json
import mmap
import os
import queue
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import zlib
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

__all__ = ["Change", "changes_of", "main", "pytest_configure", "with_marks"]

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "mutate"
PACKAGE = Path("src/shardex")
COPIED = ("src", "tests", "docs", "benchmarks", ".ci", "conftest.py", "pyproject.toml", "README.md", "Makefile")
COPIED_TOO = ("setup.py", "constraints.txt", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "examples")
OPTIONS = ["-q", "--hypothesis-profile=ci", "-p", "tests.mutate", "-o", "tmp_path_retention_policy=failed"]
RUNS = (
    ("make test", "c", "not long", ""),
    ("make test", "numpy", "not long", "KERNEL_TESTS"),
    ("make test-all", "c", "long", ""),
    ("make test-all", "numpy", "not long", "MORE_KERNEL_TESTS"),
)
"""The runs of tests as in the Makefile: suite, kernel, mark, variable with the tests. Other Pythons are left out."""
MEMORY = 6 << 30
"""Bytes that a process of a changed copy can take: a wrong size must not stop the machine."""

COMPARE = {ast.Eq: "!=", ast.NotEq: "==", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Is: "is not"}
COMPARE |= {ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"}
ARITHMETIC = {ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.Div: "*", ast.Mod: "*"}
ARITHMETIC |= {ast.LShift: ">>", ast.RShift: "<<", ast.BitAnd: "|", ast.BitOr: "&"}


class Change(NamedTuple):
    """One change of a source file."""

    path: str
    line: int
    what: str
    start: int
    end: int
    text: str
    """What replaces the bytes from `start` to `end`."""

    def applied(self, source: bytes) -> bytes:
        """Return the source with the change."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


class Case(NamedTuple):
    """A test with the kernel that it ran on, and the blocks that it executed."""

    test: str
    kernel: str
    long: bool
    seconds: float
    blocks: frozenset[int]


# What can be changed.


def changes_of(path: str, source: str) -> list[Change]:
    """Return the changes that can be made in a source file.

    >>> [change.what for change in changes_of("m.py", "def f(a):\\n    return a < 1\\n")]
    ['return a < 1 -> return', 'a < 1 -> a <= 1', '1 -> 2', '1 -> 0']
    """
    starts = [0, *(found.end() for found in re.finditer(rb"\n", source.encode()))]
    found = []
    for node, text in _replacements(ast.parse(source)):
        assert node.end_lineno is not None and node.end_col_offset is not None
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        before = " ".join(source.encode()[start:end].decode().split())
        shown = f"without {before}" if text == "pass" else f"{before} -> {text}"
        found.append(Change(path, node.lineno, textwrap.shorten(shown, 150), start, end, text))
    return found


def _replacements(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield pairs of a node and the text that replaces it."""
    for node in _executed(tree):
        if isinstance(node, ast.stmt):
            yield from ((node, text) for text in _of_statement(node))
        elif isinstance(node, ast.expr):
            yield from ((node, f"({text})" if isinstance(node, ast.BinOp) else text) for text in _of_expression(node))


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that do something when they run: no annotation, docstring, import, or text of an error."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.JoinedStr():
            return
        case ast.Expr(value=ast.Constant()):
            return
        case ast.Assign(targets=[ast.Name(id="__all__")]) | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.Raise():
            yield node
            return
        case ast.arg():
            return
    yield node
    left_out = {"annotation", "returns", "type_params"}
    for name, value in ast.iter_fields(node):
        if name not in left_out:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _executed(child)


def _of_statement(node: ast.stmt) -> Iterator[str]:
    """Yield what a statement can become."""
    match node:
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "return"
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise() | ast.Delete():
            yield "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "pass"
        case ast.Continue():
            yield "break"
        case ast.Break():
            yield "continue"


def _of_expression(node: ast.expr) -> Iterator[str]:
    """Yield what an expression can become."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            yield f"{ast.unparse(left)} {COMPARE[type(op)]} {ast.unparse(right)}"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            yield f"{ast.unparse(left)} {ARITHMETIC[type(op)]} {ast.unparse(right)}"
        case ast.BoolOp(op=op, values=values):
            word = " or " if isinstance(op, ast.And) else " and "
            yield "(" + word.join(f"({ast.unparse(value)})" for value in values) + ")"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.IfExp(test=test, body=body, orelse=other):
            yield f"({ast.unparse(other)} if {ast.unparse(test)} else {ast.unparse(body)})"
        case ast.Constant(value=bool() as flag):
            yield str(not flag)
        case ast.Constant(value=int() as number):
            yield str(number + 1)
            yield str(number - 1)
        case ast.Call(func=ast.Name(id="min" | "max")):
            pass  # the same with its arguments swapped
        case ast.Call(args=[first, second, *rest], keywords=keywords) if not isinstance(first, ast.Starred):
            if not isinstance(second, ast.Starred) and ast.dump(first) != ast.dump(second):
                yield ast.unparse(ast.Call(node.func, [second, first, *rest], keywords))


def drawn(count: int, seed: int, rooms: list[str], compat: bool) -> list[Change]:
    """Return changes of random lines, at most one of each line."""
    lines: dict[tuple[str, int], list[Change]] = {}
    for path in _sources():
        room = path.relative_to(PACKAGE).parts[0]
        if (rooms and room not in rooms) or (room == "compat" and not compat and "compat" not in rooms):
            continue
        for change in changes_of(str(path), (ROOT / path).read_text("utf-8")):
            lines.setdefault((change.path, change.line), []).append(change)
    generator = random.Random(seed)
    order = sorted(lines)
    generator.shuffle(order)
    return [generator.choice(lines[line]) for line in order[:count]]


def _sources() -> list[Path]:
    """Return the modules of the package, relative to the repository."""
    return sorted(path.relative_to(ROOT) for path in (ROOT / PACKAGE).rglob("*.py"))


# Which tests execute which block.


class Block(NamedTuple):
    """Statements that run together, and the number of the byte that they set."""

    path: str
    first: int
    last: int
    number: int


def with_marks(path: str, source: str, number: int) -> tuple[str, list[Block]]:
    """Return a source whose blocks set a byte each when they begin, from `number` on, and these blocks.

    >>> print(with_marks("m.py", "def f(a):\\n    if a:\\n        return 1\\n", 5)[0], end="")
    def f(a):
        __blocks__[5] = 1
        if a:
            __blocks__[6] = 1
            return 1
    """
    lines = source.splitlines(keepends=True)
    blocks: list[Block] = []
    marks: list[tuple[int, str]] = []
    for statements in _bodies(ast.parse(source), inside=False):
        first, last = statements[0], statements[-1]
        line = min([first.lineno, *(one.lineno for one in getattr(first, "decorator_list", []))])
        indent = lines[line - 1][: first.col_offset]
        if indent.strip() or lines[line - 1].startswith("elif ", first.col_offset):
            continue  # on the line of its header
        blocks.append(Block(path, line, last.end_lineno or last.lineno, number))
        marks.append((line, f"{indent}__blocks__[{number}] = 1\n"))
        number += 1
    for line, mark in sorted(marks, reverse=True):
        lines.insert(line - 1, mark)
    return "".join(lines), blocks


def _bodies(node: ast.AST, *, inside: bool) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements in functions, without their docstrings."""
    within = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    for _, value in ast.iter_fields(node):
        statements = [one for one in value if isinstance(one, ast.stmt)] if isinstance(value, list) else []
        if statements and isinstance(statements[0], ast.Expr) and isinstance(statements[0].value, ast.Constant):
            statements = statements[1:]
        if statements and within and not isinstance(node, ast.ClassDef):
            yield statements
    for child in ast.iter_child_nodes(node):
        yield from _bodies(child, inside=within)


FIRST_LINES = """
import builtins as _b, mmap as _m, os as _o
if "SHARDEX_BLOCKS" in _o.environ:
    with open(_o.environ["SHARDEX_BLOCKS"], "r+b") as _f:
        _b.__blocks__ = _m.mmap(_f.fileno(), 0)
else:
    _b.__blocks__ = bytearray({size})
"""


def _instrumented(folder: Path) -> list[Block]:
    """Copy the project into a folder, with marks; return its blocks."""
    _copy_project(folder)
    blocks: list[Block] = []
    for path in _sources():
        text, found = with_marks(str(path), (ROOT / path).read_text("utf-8"), len(blocks))
        blocks += found
        (folder / path).write_text(text, "utf-8")
    door = folder / PACKAGE / "__init__.py"
    tree = ast.parse(text := door.read_text("utf-8"))
    after = max(
        node.end_lineno or 0
        for node in tree.body
        if isinstance(node, ast.Expr) or (isinstance(node, ast.ImportFrom) and node.module == "__future__")
    )
    lines = text.splitlines(keepends=True)
    lines.insert(after, FIRST_LINES.format(size=len(blocks)))
    door.write_text("".join(lines), "utf-8")
    return blocks


def _copy_project(folder: Path) -> None:
    """Copy what tests need into a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in (*COPIED, *COPIED_TOO):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, folder / name)


def executed(jobs: int, again: bool) -> tuple[list[Block], list[Case]]:
    """Return the blocks of the package, and which of them each test executes."""
    stamp = hashlib.sha256()
    for path in _sources():
        stamp.update((ROOT / path).read_bytes())
    kept, seen = WORK / "blocks.json", WORK / "marked" / "seen"
    if again or not kept.exists() or json.loads(kept.read_text("utf-8"))["stamp"] != stamp.hexdigest():
        print("running all tests once, to see which lines they execute", flush=True)
        blocks = _instrumented(WORK / "marked")
        seen.mkdir()
        for kernel, tests in (("c", []), ("numpy", [*_tests_of("KERNEL_TESTS"), *_tests_of("MORE_KERNEL_TESTS")])):
            settings = _settings(WORK / "marked", kernel) | {"MUTATE_SEEN": f"{seen / kernel} {len(blocks)}"}
            command = [sys.executable, "-m", "pytest", *OPTIONS, "-m", "", "-n", str(jobs), *tests]
            with open(WORK / f"seen-{kernel}.log", "w") as log:
                subprocess.run(command, cwd=WORK / "marked", env=settings, check=False, stdout=log, stderr=log)
        kept.write_text(json.dumps({"stamp": stamp.hexdigest(), "blocks": blocks}), "utf-8")
    blocks = [Block(*block) for block in json.loads(kept.read_text("utf-8"))["blocks"]]
    return blocks, [case for path in sorted(seen.glob("*.jsonl")) for case in _seen_cases(path)]


def _seen_cases(path: Path) -> Iterator[Case]:
    """Yield the tests that passed in a process."""
    for line in path.read_text("utf-8").splitlines():
        test, passed, long, seconds, bits = json.loads(line)
        seen = np.unpackbits(np.frombuffer(zlib.decompress(base64.b64decode(bits)), np.uint8))
        if passed:
            yield Case(test, path.name.split("-")[0], long, seconds, frozenset(np.flatnonzero(seen).tolist()))


def only_long(blocks: list[Block], cases: list[Case]) -> list[tuple[Block, str]]:
    """Return the blocks that no test of `make test` executes, each with a long test that does."""
    short = {number for case in cases if not case.long for number in case.blocks}
    tests = {number: case.test for case in cases if case.long for number in case.blocks - short}
    return [(block, tests[block.number]) for block in blocks if block.number in tests]


def _tests_of(variable: str) -> list[str]:
    """Return the tests that a variable of the Makefile names; all without a name."""
    makefile = (ROOT / "Makefile").read_text("utf-8").replace("\\\n", " ")
    found = re.search(rf"^{variable} := (.*)$", makefile, re.MULTILINE)
    assert found is not None or not variable, f"the Makefile has no {variable}"
    return found[1].split() if found else ["src", "tests"]


def _settings(folder: Path, kernel: str) -> dict[str, str]:
    """Return the environment of tests in a copy of the project."""
    temporary = Path(os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir(), f"shardex-{folder.name}")
    temporary.mkdir(exist_ok=True)
    settings = {**os.environ, "PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}"}
    settings["PYTEST_DEBUG_TEMPROOT"] = str(temporary)
    return settings | ({"SHARDEX_KERNEL": "numpy"} if kernel == "numpy" else {})


# Which change is found.


class Found(NamedTuple):
    """What the tests say about a change."""

    change: Change
    suite: str
    """`make test`, `make test-all`, or empty if no test fails."""
    test: str
    """The first test that fails."""
    tests: int
    """How many tests execute the line."""


def cases_of(change: Change, blocks: list[Block], cases: list[Case]) -> list[Case]:
    """Return the tests that execute a line; those that execute little besides it come first."""
    of_file = [block for block in blocks if block.path == change.path]
    around = [block for block in of_file if block.first <= change.line <= block.last]
    wanted = {min(around, key=lambda block: block.last - block.first).number} if around else set()
    wanted = wanted or {block.number for block in of_file}
    return sorted((case for case in cases if wanted & case.blocks), key=lambda case: len(case.blocks))


def found(change: Change, cases: list[Case], folder: Path, seconds: float) -> Found:
    """Make a change in a copy of the project, run tests there until one fails, and take the change back."""
    path = folder / change.path
    source = path.read_bytes()
    path.write_bytes(change.applied(source))
    try:
        for suite, kernel, mark, of in RUNS:
            within = tuple(_tests_of(of))
            tests = [case for case in cases if case.kernel == kernel and case.test.startswith(within)]
            for some in (tests[:30], tests[30:]):
                if test := _failing(some, mark, kernel, folder, seconds):
                    return Found(change, suite, test, len(cases))
    finally:
        path.write_bytes(source)
    return Found(change, "", "", len(cases))


def _failing(cases: list[Case], mark: str, kernel: str, folder: Path, seconds: float) -> str:
    """Run the tests of a mark until one fails; return its name, or an empty string."""
    wanted: list[str] = []
    total = 0.0
    for case in cases:
        total += case.seconds
        if total < seconds or not wanted:
            wanted.append(case.test)
    if not wanted:
        return ""
    (folder / "wanted.json").write_text(json.dumps(wanted), "utf-8")
    settings = _settings(folder, kernel) | {"MUTATE_ONLY": str(folder / "wanted.json")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        *OPTIONS,
        "-m",
        mark,
        "-x",
        "--timeout=60",
        *dict.fromkeys(map(_file, wanted)),
    ]
    with subprocess.Popen(
        command, cwd=folder, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (MEMORY, MEMORY))
        try:
            output = process.communicate(timeout=120 + 10 * seconds)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            output = "FAILED: the tests did not end"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode in (0, 5):
        return ""
    named = re.search(r"^(?:FAILED|ERROR):? (.*)$", output, re.MULTILINE)
    return named[1] if named else output.strip().splitlines()[-1]


def _file(test: str) -> str:
    """Return the file of a test."""
    return test.partition("::")[0]


# As a plugin of pytest: write which blocks each test executes, or run only some tests.


class _Watch:
    """Writes for each test whether it passed, its CPU time with that of its processes, and the bytes that it set."""

    def __init__(self, prefix: str, size: int) -> None:
        name = f"{prefix}-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
        Path(f"{name}.bytes").write_bytes(bytes(size))
        os.environ["SHARDEX_BLOCKS"] = f"{name}.bytes"
        with open(f"{name}.bytes", "r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), 0)
        self._out = Path(f"{name}.jsonl")
        self._failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure."""
        self._failed |= report.failed

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Run a test; write what it executed."""
        self._bytes[:] = bytes(len(self._bytes))
        self._failed = False
        begin = sum(os.times()[:4])
        result = yield
        seconds = round(sum(os.times()[:4]) - begin, 3)
        bits = np.packbits(np.frombuffer(self._bytes[:], np.uint8)).tobytes()
        packed = base64.b64encode(zlib.compress(bits)).decode()
        long = item.get_closest_marker("long") is not None
        with open(self._out, "a", encoding="utf-8") as out:
            out.write(json.dumps([item.nodeid, not self._failed, long, seconds, packed]) + "\n")
        return result


class _Only:
    """Runs the wanted tests only, file by file, in the order of the first wanted of each file."""

    def __init__(self, names: list[str]) -> None:
        self._order = {name: number for number, name in enumerate(names)}
        self._files = {file: number for number, file in enumerate(dict.fromkeys(map(_file, names)))}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out other tests."""
        items[:] = sorted(
            (item for item in items if item.nodeid in self._order),
            key=lambda item: (self._files[_file(item.nodeid)], self._order[item.nodeid]),
        )


if "MUTATE_SEEN" in os.environ:
    # Now, because the package finds the bytes when it is imported, which is before pytest calls `pytest_configure`.
    _prefix, _size = os.environ["MUTATE_SEEN"].split()
    _plugin: _Watch | _Only | None = _Watch(_prefix, int(_size))
elif "MUTATE_ONLY" in os.environ:
    _plugin = _Only(json.loads(Path(os.environ["MUTATE_ONLY"]).read_text("utf-8")))
else:
    _plugin = None


def pytest_configure(config: pytest.Config) -> None:
    """Take part in this run if it is one of this module."""
    if _plugin is not None:
        config.pluginmanager.register(_plugin)


# The command.


def main(arguments: Iterable[str] | None = None) -> int:
    """Make changes and print what finds them."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=150, help="how many changes")
    parser.add_argument("--seed", type=int, default=0, help="another number draws other lines")
    parser.add_argument("--room", action="append", default=[], help="only lines of this room; can be repeated")
    parser.add_argument("--compat", action="store_true", help="also lines of shardex.compat")
    parser.add_argument("--again", action="store_true", help="see again which lines the tests execute")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes")
    parser.add_argument("--seconds", type=float, default=60, help="CPU time of the tests of a change")
    options = parser.parse_args(None if arguments is None else list(arguments))
    blocks, cases = executed(options.jobs, options.again)
    print(f"{len(blocks)} blocks, {len(cases)} tests", flush=True)
    for block, test in only_long(blocks, cases):
        print(f"{block.path}:{block.first}-{block.last}: executed only by long tests\n    {test}", flush=True)
    changes = drawn(options.count, options.seed, options.room, options.compat)
    folders: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for number in range(options.jobs):
        _copy_project(WORK / f"changed-{number}")
        folders.put(WORK / f"changed-{number}")

    def tried(change: Change) -> Found:
        folder = folders.get()
        try:
            return found(change, cases_of(change, blocks, cases), folder, options.seconds)
        finally:
            folders.put(folder)

    results: list[Found] = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as threads:
        for one in concurrent.futures.as_completed([threads.submit(tried, change) for change in changes]):
            results.append(one.result())
            print(_shown(results[-1]), flush=True)
    counted = Counter(one.suite for one in results)
    print(
        f"{len(results)} changes: {counted['make test']} found by make test, {counted['make test-all']} only by "
        f"make test-all, {counted['']} by neither, {sum(not one.tests for one in results)} of these in lines that no "
        "test executes"
    )
    return bool(counted["make test-all"])


def _shown(one: Found) -> str:
    """Return a line about a change."""
    by = f"{one.suite}: {one.test}" if one.suite else f"found by none of {one.tests} tests"
    return f"{one.change}\n    {by}"


if __name__ == "__main__":
    sys.exit(main())
