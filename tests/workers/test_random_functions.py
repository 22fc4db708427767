"""Random changes around functions: fingerprints differ whenever calls have other results, and are equal elsewhere.

A user's module, its helper module and a package are made of pieces, each of which has some variants. `CASES` use them
as code does: globals, attributes of modules, imports in functions, closures, defaults, decorators, classes with bases
and metaclasses, instances, partials, methods, dunder names. Another variant of a piece changes some of the results.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

FULL = os.environ.get("SHARDEX_FAULTS") == "full"

PACKAGE = """
__version__ = {package_version}
DEEP = {package_deep}
"""
INNER = """
from . import DEEP as _deep
INNER = {inner_constant}
__level__ = {inner_dunder}
def run(x):
    return x, INNER, _deep
"""
HELPER = """
'''{helper_doc}'''
import functools
__version__ = {helper_version}
LIMIT = {helper_limit}
NESTED = {{"a": [1, {helper_nested}]}}
def clip(x):
    return min(x, LIMIT) + {helper_code}
def chosen(x):
    return {helper_chosen}
def __getattr__(name):
    return {helper_getattr} if name == "dynamic" else None
class Settings:
    size = {settings_size}
    __weight__ = {settings_dunder}
    table = dict(k={settings_table})
def scaled(by):
    def decorate(function):
        @functools.wraps(function)
        def inner(x):
            return function(x), by, {decorator_code}
        return inner
    return decorate
"""
MAIN = """
'''{main_doc}'''
import collections, dataclasses, datetime, enum, functools, operator, pathlib, re, types, typing
import numpy as np
import helper, package.inner
from helper import chosen, scaled, Settings as Renamed
__version__ = {main_version}
__all_of_it__ = {main_dunder}
CONSTANT = {main_constant}
ARRAY = np.array([0, {array_value}, 2])
class Tagged(np.ndarray):
    pass
TAGGED = np.arange(3).view(Tagged)
TAGGED.tag = {array_tag}
LOOKUP = collections.defaultdict(lambda: {default_factory}, a=1)
FROZEN = frozenset([("x", {frozen_value}), "y"])
SPACE = types.SimpleNamespace(v={space_value})
class Meta(type):
    @property
    def kind(cls):
        return {meta_code}
class Base(metaclass=Meta):
    inherited = {base_attribute}
    def method(self):
        return {base_method}
    @classmethod
    def make(cls):
        return cls({made_with})
    @staticmethod
    def still(x):
        return x, {static_code}
    @property
    def shown(self):
        return self.value, {property_code}
    @functools.cached_property
    def kept(self):
        return {cached_code}
class Derived(Base):
    __slots__ = ("value",)
    def __init__(self, value={init_default}):
        self.value = value
    def __call__(self, x):
        return super().method(), x, self.value
    def __add__(self, other):
        return {operator_code}
class Loose(Base):
    def __init__(self, value):
        self.value = value
INSTANCE = Loose({instance_value})
def outer(n):
    held = [n]
    def first(x):
        def second():
            return x, held[0], {nested_code}, third()
        return second()
    def third():
        return {sibling_code}
    return first
CLOSED = outer({closure_value})
PARTIAL = functools.partial(operator.add, {partial_value})
BOUND = INSTANCE.method
GETTER = operator.itemgetter({getter_value})
@scaled({decorator_value})
def decorated(x, /, y={default_value}, *, z=[{keyword_default}]):
    return x, y, z
@functools.lru_cache
def cached(x):
    return CACHED_GLOBAL
CACHED_GLOBAL = {cached_global}
@functools.singledispatch
def dispatched(x):
    return 0
@dispatched.register
def _(x: int):
    return {dispatch_code}
def even(n):
    return {recursion_end} if n == 0 else odd(n - 1)
def odd(n):
    return even(n - 1) if n else 0
def generated():
    yield from ({generator_code}, 2)
def imports():
    import package.inner as inside
    import package.inner
    from helper import NESTED as nested
    from package.inner import run
    return inside.__level__, package.__version__, nested["a"][1], run(0)
def local(x):
    found = {local_constant}
    class Local:
        attribute = {local_class}
    return found, Local.attribute, [k + {comprehension} for k in range(2)], (lambda y: (y, {lambda_code}))(x)
def aliases(x):
    alias = helper
    return alias.LIMIT, getattr(helper, "LIMIT")
def global_statement(x):
    global CHANGED
    CHANGED = CHANGED + 1
    return CHANGED
CHANGED = {changed_global}
def only_deep():
    import package.inner
    return package.DEEP
def only_root():
    import package.inner
    return package.inner.INNER, package.__version__
def star(*args, k={star_default}, **more):
    return args, k, more
def noted(x):
    return noted.note
noted.note = {function_attribute}
def annotated(x: {annotation} = 0):
    return annotated.__annotations__["x"] * 0
def matched(x):
    match x:
        case {pattern}:
            return 1
        case _:
            return 0
async def waits(x):
    return x, {async_code}
def run_async(x):
    try:
        waits(x).send(None)
    except StopIteration as stop:
        return stop.value
def caught(x):
    try:
        raise ValueError({raised})
    except ValueError as error:
        return error.args
Pair = collections.namedtuple("Pair", "a b", defaults=[{tuple_default}])
class Data(typing.NamedTuple):
    a: int = {named_default}
@dataclasses.dataclass
class Fields:
    a: int = {field_default}
    b: list = dataclasses.field(default_factory=lambda: [{field_factory}])
class Colour(enum.IntEnum):
    RED = {enum_value}
class Descriptor:
    def __get__(self, instance, owner):
        return {descriptor_code}
class Mixed(Derived):
    described = Descriptor()
    def __getattr__(self, name):
        return {getattr_code}
    def __class_getitem__(cls, key):
        return {class_getitem}
    def __init_subclass__(cls, **more):
        cls.set_by_base = {init_subclass}
class Child(Mixed):
    pass
Mixed.patched = {patched_attribute}
Mixed.patched_method = lambda self: {patched_method}
TABLE = {{"call": lambda x: {call_in_dict}, "nested": [{{"k": {deep_value}}}]}}
MASKED = np.ma.array([1, 2, 3], mask=[0, {mask_value}, 0])
RECORDS = np.array([(1, {record_value})], dtype=[("a", "i4"), ("b", "f8")])
BYTES = bytearray(b"{bytes_value}")
DAY = datetime.date(2020, 1, {day_value})
PATH = pathlib.PurePosixPath("/a/{path_value}")
REGEX = re.compile("[0-{regex_value}]")
COUNTER = collections.Counter(a={counter_value})
DEQUE = collections.deque([1, {deque_value}], maxlen=3)
CHAIN = functools.reduce(lambda f, g: lambda x: g(f(x)), [lambda x: x + {chain_value}, lambda x: x * 2])
WRAPPED = functools.wraps(even)(lambda n: {wrapped_code})
METHOD_OF_CLASS = types.MethodType(lambda self, x: (self, x), {bound_self})
CASES = [
    lambda x: __version__,
    lambda x: __all_of_it__,
    lambda x: CONSTANT,
    lambda x: ARRAY.tolist(),
    lambda x: TAGGED.tag,
    lambda x: LOOKUP["no"],
    lambda x: sorted(map(str, FROZEN)),
    lambda x: SPACE.v,
    lambda x: helper.__version__,
    lambda x: helper.clip(7),
    lambda x: chosen(x),
    lambda x: helper.dynamic,
    lambda x: (Renamed.size, Renamed.__weight__),
    lambda x: helper.Settings.table["k"],
    lambda x: package.inner.INNER,
    lambda x: package.inner.__level__,
    lambda x: package.inner.run(0),
    lambda x: package.DEEP,
    lambda x: Derived.kind,
    lambda x: Derived.inherited,
    lambda x: Derived()(x),
    lambda x: Base.still(x),
    lambda x: Loose.make().shown,
    lambda x: INSTANCE.shown,
    lambda x: INSTANCE.kept,
    lambda x: Derived() + 1,
    lambda x: CLOSED(x),
    lambda x: GETTER(range(9)),
    lambda x: decorated(x),
    lambda x: dispatched(1),
    lambda x: list(generated()),
    lambda x: __doc__,
    lambda x: even(4),
    lambda x: (Pair(1), Data(), Fields(), Colour.RED.value),
    lambda x: (Mixed().described, Mixed().unknown, Mixed[0]),
    lambda x: (Child.set_by_base, Mixed.patched, Mixed().patched_method()),
    lambda x: TABLE["call"](x),
    lambda x: TABLE["nested"],
    lambda x: (MASKED.tolist(), RECORDS.tolist()),
    lambda x: (BYTES, DAY, PATH, REGEX.findall("0123456789"), COUNTER, DEQUE),
    lambda x: (yield_from(x), CHAIN(x)),
    WRAPPED,
    METHOD_OF_CLASS,
    functools.partial(star, 1, z={partial_keyword}),
    imports, local, aliases, only_deep, only_root, star, noted, matched, run_async, caught, global_statement,
    PARTIAL, BOUND, cached, even, annotated, Loose(3).method, Derived(4), Base.make, Base.still, INSTANCE.__init__,
]
def yield_from(x):
    return [one for one in generated()]
"""
FILES = {"package/__init__.py": PACKAGE, "package/inner.py": INNER, "helper.py": HELPER, "main.py": MAIN}
NAMES = sorted({name for text in FILES.values() for name in re.findall(r"(?<!\{)\{(\w+)\}", text)})
VALUES = {"annotation": ["int", "bool"], "mask_value": ["0", "1"], "pattern": ["5", "6"]}
"""Variants of pieces that are no plain numbers."""
UNSEEN = {"annotation", "helper_doc"}
"""Pieces that change no result."""

RUN = """
import inspect, json, sys
from shardex.workers.function_fingerprint import function_fingerprint, unknown_objects
sys.path[:0] = ["."]
found = []
for folder in json.loads(sys.argv[1]):
    for name in [one for one in sys.modules if one.partition(".")[0] in ("main", "helper", "package")]:
        del sys.modules[name]
    sys.path[0] = folder
    import main
    cases = []
    for case in main.CASES:
        assert not unknown_objects(case), unknown_objects(case)
        fingerprint = function_fingerprint(case)
        try:
            result = repr(case(5) if inspect.signature(case).parameters else case())
        except TypeError as error:
            result = str(error)
        cases.append([fingerprint, result])
    found.append(cases)
print(json.dumps(found))
"""


def write(folder: Path, values: dict[str, str]) -> str:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.format(**values))
    return str(folder)


def look(folders: list[str], seed: int) -> list[list[list[str]]]:
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", RUN, json.dumps(folders)]
    found: list[list[list[str]]] = json.loads(subprocess.check_output(command, env=environment, text=True))
    return found


def variant(name: str, chance: random.Random, value: str) -> str:
    others = VALUES.get(name, [str(number) for number in range(1, 9)])
    return chance.choice([one for one in others if one != value])


@pytest.mark.parametrize("number", range(10 if FULL else 1))
def test_every_change_of_a_result_changes_the_fingerprint(tmp_path: Path, number: int) -> None:
    """All pieces one by one, and equal code in other processes and folders."""
    chance = random.Random(number)
    first = {name: VALUES.get(name, [str(chance.randrange(1, 9))])[0] for name in NAMES}
    changes = {name: {**first, name: variant(name, chance, first[name])} for name in NAMES}
    folders = [write(tmp_path / "first", first)]
    folders += [write(tmp_path / name, values) for name, values in changes.items()]
    before, *others = look(folders, number)
    for name, found in zip(NAMES, others, strict=True):
        changed = [at for at, (one, other) in enumerate(zip(before, found, strict=True)) if one[1] != other[1]]
        assert bool(changed) == (name not in UNSEEN), name
        stale = [at for at in changed if before[at][0] == found[at][0]]
        assert not stale, (name, [before[at] for at in stale], [found[at] for at in stale])
    again, _ = look([write(tmp_path / "again", first), folders[1]], number + 1)
    assert [one[0] for one in again] == [one[0] for one in before]
    assert len({one[0] for one in before}) == len(before)
