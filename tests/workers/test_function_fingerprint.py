"""`function_fingerprint`: equal in all processes, different after any change of code or data that a function uses."""

from __future__ import annotations

import functools
import io
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardex as sx
from shardex.kernel import Columns
from shardex.workers.function_fingerprint import function_fingerprint, unknown_objects

HELPER = '''
"""A module of the user."""
import math
LIMIT = 3

def clip(x):
    return min(x, LIMIT)

def unrelated(x):
    return x

class Tool:
    def run(self, x):
        return x + 1
'''

MAIN = '''
import collections, dataclasses, enum, functools, json, math, operator, re, sys
import numpy as np
import pydantic
import helper
import shardex as sx
from helper import clip

WORDS = {"a", "b", "c", "d", "e"}
TABLE = {"x": [1, 2.5, None], "y": (True, b"z")}
PATTERN = re.compile("a+")
ARRAY = np.arange(1000.0)

def even(n):
    return n == 0 or odd(n - 1)

def odd(n):
    return n != 0 and even(n - 1)

def with_set(x):
    return x in {"p", "q", "r", "s", 5} or x in WORDS

def with_defaults(x, y=3, *, z=(1, {"k": 2})):
    """Docstring."""
    return x + y

def factory(n):
    def inner(x):
        def deeper():
            return x * n + sum(TABLE["x"][:2])
        return [deeper() for _ in range(n)]
    return inner

def with_module(x):
    return helper.clip(x) + math.sqrt(x)

def with_import(x):
    from helper import Tool
    import helper as other
    return Tool().run(x)

def with_name(x):
    return clip(x), PATTERN.match(x), ARRAY[x]

@functools.lru_cache(maxsize=10)
def cached(x):
    return with_name(x)

def decorate(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper

@decorate
def decorated(x):
    return x

@functools.singledispatch
def dispatched(x):
    return x

@dispatched.register
def _(x: int):
    return -x

class Colour(enum.Enum):
    RED = 1
    BLUE = 2

@dataclasses.dataclass
class Config:
    size: int = 3
    names: list = dataclasses.field(default_factory=list)
    colour: Colour = Colour.RED

Point = collections.namedtuple("Point", "x y")

class Base:
    def __init__(self, vocabulary):
        self.vocabulary = vocabulary
        self.parent = self

    def __call__(self, text):
        return [self.vocabulary.get(word, self.default) for word in text.split()]

    @property
    def size(self):
        return len(self.vocabulary)

    @classmethod
    def make(cls):
        return cls({"a": 1})

    @staticmethod
    def twice(x):
        return 2 * x

class Tokenizer(Base):
    default = 0

    def __init__(self, vocabulary):
        super().__init__(vocabulary)
        self.extra = 1

class Slots(Tokenizer):
    __slots__ = ("more",)

    def __init__(self):
        self.more = 4

class Model(pydantic.BaseModel):
    a: int = 3
    b: list[str] = []

    @pydantic.field_validator("a", mode="after")
    def check(cls, value):
        return value + 1

@sx.packable
class Packed:
    x: int
    y: float = 1.0

CASES = {
    "pydantic": lambda x: Model(a=x),
    "packable": lambda x: Packed(x),
    "lambda": lambda x: x + 1,
    "even": even,
    "odd": odd,
    "set": with_set,
    "defaults": with_defaults,
    "closure": factory(3),
    "module": with_module,
    "import": with_import,
    "name": with_name,
    "cached": cached,
    "decorated": decorated,
    "dispatched": dispatched,
    "partial": functools.partial(with_defaults, 1, y=WORDS),
    "config": lambda x: Config(colour=Colour.BLUE),
    "point": lambda x: Point(1, x),
    "object": Tokenizer({"a": 5, "b": 6}),
    "slots": Slots(),
    "method": Tokenizer({"a": 5}).__call__,
    "class method": Tokenizer.make,
    "static": Tokenizer.twice,
    "get": {"a": 1}.get,
    "str": str,
    "len": len,
    "upper": str.upper,
    "ufunc": np.abs,
    "mean": np.mean,
    "getter": operator.itemgetter(3),
    "json": json.dumps,
    "functions": lambda x: {even, odd, len, Colour.RED}.__len__(),
}
'''


def make_module(name: str, source: str) -> ModuleType:
    """Make a module of the user; the caller removes it from `sys.modules`."""
    sys.modules[name] = module = ModuleType(name)
    exec(compile(source, f"/nowhere/{name}.py", "exec", dont_inherit=True), vars(module))
    return module


PRINT = """
import os
from shardex.workers.function_fingerprint import function_fingerprint, unknown_objects
if __name__ == "__main__":
    for name, case in CASES.items():
        assert not unknown_objects(case), (name, unknown_objects(case))
    print(json.dumps({name: function_fingerprint(case) for name, case in CASES.items()}))
    if "worker" in sys.argv:
        from shardex.workers import start_executor
        for name in ("dispatched", "slots", "packable"):  # the copy of a class in a worker has other attributes
            del CASES[name]
        executor = start_executor(function_fingerprint, 2)
        tickets = {name: executor.submit(case) for name, case in CASES.items()}
        print(json.dumps({name: executor.result(ticket) for name, ticket in tickets.items()}))
        executor.close()
"""


def run(folder: Path, seed: int, main: str = MAIN, helper: str = HELPER, *arguments: str) -> list[dict[str, str]]:
    folder.mkdir()
    (folder / "helper.py").write_text(helper)
    (folder / "main.py").write_text(main + PRINT)
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    command = [sys.executable, str(folder / "main.py"), *arguments]
    lines = subprocess.check_output(command, env=environment, text=True).splitlines()
    return [json.loads(line) for line in lines]


class TestEqual:
    def test_in_other_processes_folders_and_lines(self, tmp_path: Path) -> None:
        first, worker = run(tmp_path / "a", 1, MAIN, HELPER, "worker")
        moved = "# a comment\n\n" + MAIN.replace("def odd", "\n# another comment\ndef odd") + "\ndef unused(): pass\n"
        helper = HELPER.replace("return x\n", "return 5 * x  # unrelated() is not called by most\n")
        (second,) = run(tmp_path / "b", 2, moved, helper)
        assert len(set(first.values())) == len(first)
        assert worker == {name: first[name] for name in worker} and len(worker) == len(first) - 3
        different = {name for name in first if first[name] != second[name]}
        assert different == {"import"}  # the module is a value there: all of it counts

    def test_after_the_function_has_run_often(self) -> None:
        def function(x: int) -> int:
            return sum(itertools.chain([x], range(3))) + len(str(x))

        before = function_fingerprint(function)
        for number in range(1000):
            function(number)
        assert function_fingerprint(function) == before

    def test_of_equal_data_that_is_shared_or_not(self) -> None:
        one, array = sx.Text(), np.arange(3)
        shared = [one, one, array, array, "a" * 3]
        copies = [sx.Text(), sx.Text(), np.arange(3), np.arange(3), "".join(["a", "aa"])]
        assert function_fingerprint(shared) == function_fingerprint(copies)

    @given(st.lists(st.one_of(st.text(), st.integers(), st.tuples(st.text(), st.floats()))))
    def test_of_sets_in_any_order(self, values: list[Any]) -> None:
        assert function_fingerprint(set(values)) == function_fingerprint(set().union(values[::-1]))
        assert function_fingerprint(frozenset(values)) != function_fingerprint({*values, "one more value"})


CHANGES = [
    ("x + 1,", "x + 2,", {"lambda"}),
    ("n == 0 or", "n == 1 or", {"even", "odd", "functions"}),
    ('{"p", "q"', '{"p", "Q"', {"set"}),
    ('{"a", "b", "c"', '{"a", "B", "c"', {"set", "partial"}),
    ("y=3", "y=4", {"defaults", "partial"}),
    ("(1, {", "(2, {", {"defaults", "partial"}),
    ("Docstring", "Other docstring", {"defaults", "partial"}),
    ("factory(3)", "factory(4)", {"closure"}),
    ("[1, 2.5,", "[1, 2.6,", {"closure"}),
    ("return x * n", "return x - n", {"closure"}),
    ("a+", "b+", {"name", "cached"}),
    ("1000.0", "1001.0", {"name", "cached"}),
    ("maxsize=10", "maxsize=11", {"cached"}),
    ("function(*args)", "function(*args, 1)", {"decorated"}),
    ("def decorated(x):\n    return x", "def decorated(x):\n    return -x", {"decorated"}),
    ("return -x\n\nclass", "return -2 * x\n\nclass", {"dispatched"}),
    ("BLUE = 2", "BLUE = 3", {"config", "functions"}),
    ("size: int = 3", "size: int = 4", {"config"}),
    ("size: int = 3", "size: float = 3", {"config"}),
    ('"x y"', '"x z"', {"point"}),
    ('{"a": 5, "b"', '{"a": 7, "b"', {"object"}),
    ("default = 0", "default = 1", {"object", "slots", "method", "class method"}),
    ("self.default)", "None)", {"object", "slots", "method", "class method"}),
    ("2 * x", "3 * x", {"object", "slots", "method", "class method", "static"}),
    ('mode="after"', 'mode="before"', {"pydantic"}),
    ("b: list[str]", "b: list[int]", {"pydantic"}),
    ("y: float = 1.0", "y: float = 2.0", {"packable"}),
    ("    x: int\n", "    x: str\n", {"packable"}),
    ("self.more = 4", "self.more = 5", {"slots"}),
    ('{"a": 1}.get', '{"a": 2}.get', {"get"}),
    ("itemgetter(3)", "itemgetter(4)", {"getter"}),
    ("np.abs", "np.add", {"ufunc"}),
]


class TestDifferent:
    def fingerprints(self, main: str, helper: str = HELPER) -> dict[str, str]:
        try:
            make_module("helper", helper)
            cases = make_module("users_module", main).CASES
            return {name: function_fingerprint(case) for name, case in cases.items()}
        finally:
            del sys.modules["helper"], sys.modules["users_module"]

    @pytest.mark.parametrize(("old", "new", "cases"), CHANGES)
    def test_after_a_change(self, old: str, new: str, cases: set[str]) -> None:
        assert old in MAIN
        before, after = self.fingerprints(MAIN), self.fingerprints(MAIN.replace(old, new))
        assert {name for name in before if before[name] != after[name]} == cases

    @pytest.mark.parametrize(
        ("old", "new", "cases"),
        [
            ("LIMIT = 3", "LIMIT = 4", {"module", "import", "name", "cached"}),
            ("min(x, LIMIT)", "max(x, LIMIT)", {"module", "import", "name", "cached"}),
            ("return x + 1", "return x + 2", {"import"}),
            ("    return x\n", "    return -x\n", {"import"}),
            ('"""A module of the user."""', "", set()),
        ],
    )
    def test_after_a_change_of_another_module(self, old: str, new: str, cases: set[str]) -> None:
        assert old in HELPER
        before, after = self.fingerprints(MAIN), self.fingerprints(MAIN, HELPER.replace(old, new))
        assert {name for name in before if before[name] != after[name]} == cases

    def test_of_values_that_are_equal_but_not_the_same(self) -> None:
        values: list[Any] = [0, False, 0.0, -0.0, 0j, "0", b"0", bytearray(b"0"), [0], (0,), {0}, {0: 0}]
        values += [frozenset([0]), ...]
        values += [np.int64(0), np.int32(0), np.zeros(1), np.zeros((1, 1)), np.zeros(1, "f4"), [[0]], None, 10**9999]
        assert len(set(map(function_fingerprint, values))) == len(values)

    def test_of_arrays_that_differ_in_the_middle(self) -> None:
        array = np.zeros(100_000)
        changed = array.copy()
        changed[50_000] = 1
        assert len(set(map(function_fingerprint, [array, changed, array[::2], array.astype(object)]))) == 4
        assert function_fingerprint(array[::2]) == function_fingerprint(array[::2].copy())
        assert function_fingerprint(lambda x: array) != function_fingerprint(lambda x: changed)

    def test_of_tensors_and_models(self) -> None:
        torch = pytest.importorskip("torch")

        def model(seed: int) -> Any:
            torch.manual_seed(seed)
            return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())

        def tensor(dtype: Any) -> Any:
            return torch.arange(4).to(dtype)

        assert function_fingerprint(model(0)) == function_fingerprint(model(0))
        values = [model(0), model(1), tensor(torch.bfloat16), tensor(torch.bool), tensor(torch.int8), torch.tensor(1.0)]
        assert len(set(map(function_fingerprint, values))) == len(values)
        assert not any(map(unknown_objects, values))

    def test_of_tensors_and_arrays_that_share_bytes(self) -> None:
        torch = pytest.importorskip("torch")
        tensor = torch.arange(4).reshape(2, 2)
        number = torch.tensor([1 + 2j])
        tagged = [np.arange(3).view(Tagged), np.arange(3).view(Tagged), np.arange(3)]
        vars(tagged[1])["tag"] = 4
        values = [tensor, tensor.T, number, number.conj(), number.conj().imag, *tagged, np.int64(1), np.array(1)]
        assert len(set(map(function_fingerprint, values))) == len(values)
        assert not any(map(unknown_objects, values))
        assert function_fingerprint(tensor.T) == function_fingerprint(tensor.T.contiguous())

    def test_of_mapped_arrays(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", np.arange(3))
        mapped = [np.load(tmp_path / "a.npy", mmap_mode="r") for _ in range(2)]
        assert len(set(map(function_fingerprint, mapped))) == 1 and not unknown_objects(mapped)

    def test_lists_that_are_one_object_are_those_that_are_equal(self) -> None:
        one = [1]
        assert function_fingerprint([one, one]) == function_fingerprint([[1], [1]])

    def test_of_types_of_arrow(self) -> None:
        items = [pa.field("item", pa.int8(), nullable=nullable) for nullable in (False, True)]
        types = [pa.list_(item, 2) for item in items] + [pa.list_(item) for item in items]
        assert len(set(map(function_fingerprint, types))) == 4

    def test_of_functions_that_an_installed_function_has_made(self) -> None:
        import contextlib

        made = [contextlib.contextmanager(function) for function in (lambda: iter([1]), lambda: iter([2]))]
        assert len(set(map(function_fingerprint, made))) == 2


class TestObjectsWithoutContent:
    def test_files_and_locks(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("1")
        with open(tmp_path / "a") as file, open(tmp_path / "log", "w") as log, socket.socket() as sock:
            with ThreadPoolExecutor(1) as threads:
                for value in (file, log, sock, threads, threading.Lock(), threading.RLock(), threading.Event()):
                    assert len({function_fingerprint(constant(value)) for _ in range(2)}) == 1
            before = function_fingerprint(file)
            (tmp_path / "a").write_text("12")
            assert function_fingerprint(file) != before
            before = function_fingerprint(log)
            log.write("more")
            log.flush()
            assert function_fingerprint(log) == before
        file.close()
        function_fingerprint(file)
        assert function_fingerprint(io.BytesIO(b"1")) != function_fingerprint(io.BytesIO(b"2"))

    def test_unknown_objects_are_never_equal(self) -> None:
        class Stubborn:
            def __reduce__(self) -> Any:
                raise TypeError("no content to show")

        class Worse:
            def __getattribute__(self, name: str) -> Any:
                raise RuntimeError("no attributes at all")

        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        numbers = (number for number in range(3))
        for value, reason in [
            (numbers, "generator"),
            (Stubborn(), "no content to show"),
            ({Stubborn()}, "no content to show"),
            (Worse(), "no attributes at all"),
            (deep, "recursion"),
            (np.frompyfunc(abs, 1, 1), "a function that cannot be looked at"),
        ]:
            assert len({function_fingerprint(constant(value)) for _ in range(2)}) == 2
            (said,) = unknown_objects(constant(value))
            assert reason in said
        while deep:
            deep = deep[0]

    def test_values_that_contain_themselves(self) -> None:
        def made(number: int) -> Any:
            outer: dict[str, Any] = {"number": number}
            outer["list"] = [outer, {1, ("x", number)}]
            outer["call"] = lambda: outer
            return outer

        assert function_fingerprint(made(1)) == function_fingerprint(made(1)) != function_fingerprint(made(2))


class Tagged(np.ndarray[Any, Any]):
    tag: int = 3


def constant(value: Any) -> Callable[[Any], Any]:
    return lambda x: value


def add(number: int, sample: Any) -> dict[str, Any]:
    return {"y": sample["x"] + number}


class Numbers:
    """Rows of a user."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def read(self, rows: Any, fields: Any = None) -> Columns:
        return Columns({"x": np.asarray(rows)})


class TestDatasets:
    def test_every_kind_of_dataset(self, tmp_path: Path) -> None:
        for name in "ab":
            sx.write(tmp_path / f"{name}.jsonl", [{"x": number, "t": name} for number in range(10)])
        sx.write(tmp_path / "native", [{"x": number} for number in range(10)])

        def made() -> Iterator[Any]:
            file, other = sx.open(tmp_path / "a.jsonl"), sx.open(tmp_path / "b.jsonl")
            yield from (file, other, file[2:5], file[[1, 3]], file.shuffle(seed=1), file.shuffle(seed=2))
            yield from (file.select("x"), file.rename(x="y"), file + other, sx.open(tmp_path / "native"))
            yield from (file.map(functools.partial(add, k)) for k in (1, 2))
            yield from (sx.open([{"x": 1}, {"x": k}, {"x": 3}]) for k in (1, 2))
            yield from (sx.open({"x": np.arange(k)}) for k in (1000, 1001))
            yield from (sx.open(pa.table({"x": [1, k, None], "t": ["a", "b", "c"]})) for k in (1, 2))
            yield from (sx.Dataset(Numbers(k)) for k in (3, 4))

        first, second = (list(map(function_fingerprint, made())) for _ in range(2))
        assert first == second
        assert len(set(first)) == len(first)
        assert not any(map(unknown_objects, made()))

    def test_changed_file(self, tmp_path: Path) -> None:
        sx.write(tmp_path / "a.jsonl", [{"x": 1}])
        before = function_fingerprint(sx.open(tmp_path / "a.jsonl"))
        sx.write(tmp_path / "a.jsonl", [{"x": 2}], mode="overwrite")
        assert function_fingerprint(sx.open(tmp_path / "a.jsonl")) != before
