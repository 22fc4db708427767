"""`function_fingerprint`: a text that changes when the code or the data that a function uses changes.

It decides whether parts of an earlier run can be reused, so an unknown object makes a fingerprint that no other call
returns: a part may be made again, but is never reused wrongly. These count:

- functions of the user: bytecode, constants (docstrings too), defaults, closure, attributes, and the globals that the
  code names (``__version__`` too, not those that say where the module is, such as ``__file__``), with the functions and
  classes behind them; not their names, files, line numbers, comments, annotations
- classes of the user: bases and everything in the class; modules of the user: the attributes that the code names
- installed functions and classes: module, name and version of the package
- data: all of its content. Objects: class, and the state that they would be pickled with. Not how arrays and tensors
  lie in memory, and not whether two equal values are one object, which a function that changes its data could tell
- open files: name and mode, of a file that is only read also size and time; locks, threads, sockets: the type

What code reads by a computed name (``getattr``, ``globals()``, ``eval``), from files or from the environment is not
seen. Bytecode differs between versions of Python, and so do the fingerprints.
"""

from __future__ import annotations

import functools
import importlib
import io
import os
import pickle
import socket
import sys
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from contextvars import ContextVar
from reprlib import Repr
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from shardex.kernel import is_tensor
from shardex.lazy_door import LazyDoor
from shardex.workers.installed_code import GlobalUse, installed_name, uses, version_of

_OPAQUE = (type(threading.Lock()), type(threading.RLock()), threading.local, threading.Thread)
_OPAQUE += (socket.socket, Executor, ContextVar)  # type: ignore[assignment]
"""Types of objects without content."""
_NOT_OF_A_CLASS = {
    *("__module__", "__dict__", "__weakref__", "__doc__", "__firstlineno__", "__static_attributes__"),
    *("__annotations_cache__", "_abc_impl"),
    *(f"__pydantic_{name}__" for name in ("core_schema", "validator", "serializer", "parent_namespace")),
}
"""Attributes of classes that say where they are defined, that hold caches, or that follow from the others."""
_PLACE_OF_MODULE = {
    *("__name__", "__file__", "__cached__", "__path__", "__package__", "__spec__", "__loader__", "__builtins__")
}
"""Globals of a module that say where it is, or that all modules share."""
_TEXT_OF_MODULE = {"__doc__", "__annotations__", "__annotate__", "__conditional_annotations__", "__warningregistry__"}
"""Globals of a module that only count if code names them."""
_OF_A_MEMMAP = {"_mmap", "filename", "mode", "offset"}
"""Attributes of `numpy.memmap`, whose content is that of the array."""
_MISSING = object()
_repr = Repr()
_repr.maxother = _repr.maxstring = 100


def function_fingerprint(function: Any) -> str:
    """Return 32 hex digits for a function or any other value; equal in all processes of one Python version.

    A value that holds an unknown object (`unknown_objects`) has another fingerprint at each call.

    >>> scale = 2
    >>> function_fingerprint(lambda x: x * scale) == function_fingerprint(lambda y: y * scale)
    False
    >>> function_fingerprint(lambda x: x + 1) == function_fingerprint(lambda x: x + 1)
    True
    """
    return _Walk().fingerprint(function)


def unknown_objects(function: Any) -> list[str]:
    """Describe the objects that make the fingerprint of this function differ at each call.

    >>> unknown_objects(lambda x: x), len(unknown_objects(iter_nothing := (n for n in ())))
    ([], 1)
    """
    walk = _Walk()
    walk.fingerprint(function)
    return walk.unknown


class _Walk:
    """Hashes everything that can be reached from one value."""

    def __init__(self, sets_above: frozenset[int] = frozenset()) -> None:
        self.unknown: list[str] = []
        self._sets_above = sets_above
        self._hasher = xxhash.xxh3_128()
        self._above: dict[int, int] = {}  # number of each container and object that is being walked, by id
        self._count = 0
        self._digests: dict[int, tuple[Any, bytes]] = {}  # object, kept alive, and its digest, by id
        self._numbers: dict[int, tuple[Any, int]] = {}  # function, class or module of the user and its number, by id
        self._undefined: deque[Any] = deque()

    def fingerprint(self, value: Any) -> str:
        """Walk the value, then the functions, classes and modules of the user that it uses."""
        self._write("python", str(sys.implementation.cache_tag).encode())
        try:
            self.feed(value)
            while self._undefined:
                self._define(self._undefined.popleft())
        except Exception as error:  # an object that fails when it is looked at, or too many levels
            self._add_unknown(value, error)
        return str(self._hasher.hexdigest())

    def feed(self, value: Any) -> None:
        """Hash one value: by the method for its type, or as an object."""
        feed = _BY_TYPE.get(type(value))
        if feed is not None:
            feed(self, value)
        elif isinstance(value, type):
            self._feed_named(value)
        elif isinstance(value, np.generic):
            self._write("scalar")
            self._feed_array(np.asarray(value))
        elif isinstance(value, weakref.ref):
            self._write("reference")
            self.feed(value())
        elif isinstance(value, _OPAQUE):
            self.feed(type(value))
        elif isinstance(value, io.IOBase) and not isinstance(value, io.BytesIO | io.StringIO):
            self._feed_file(value)
        else:
            self._feed_object(value)

    def _write(self, kind: str, data: Any = b"") -> None:
        self._hasher.update(b"%s %d:" % (kind.encode(), len(data)))
        self._hasher.update(data)

    def _add_unknown(self, value: Any, error: object) -> None:
        kind = type(value)
        self.unknown.append(f"{kind.__module__}.{kind.__qualname__} {_repr.repr(value)}: {error}")
        self._write("unknown", uuid.uuid4().bytes)

    # -- data ---------------------------------------------------------------------------------------------------------

    def _feed_constant(self, value: Any) -> None:
        self._write(type(value).__name__, repr(value).encode())

    def _feed_int(self, value: int) -> None:
        self._write("int", b"%x" % value)

    def _feed_str(self, value: str) -> None:
        self._write("str", value.encode(errors="surrogatepass"))

    def _feed_bytes(self, value: bytes | bytearray) -> None:
        self._write(type(value).__name__, value)

    def _feed_buffer(self, value: pickle.PickleBuffer) -> None:
        self._write("buffer", value.raw())

    def _feed_array(self, value: NDArray[Any]) -> None:
        self._feed_object(value.dtype)
        self._feed_sequence(value.shape)
        if value.dtype.hasobject:
            self.feed(value.reshape(-1).tolist())
        else:
            self._write("array", np.ascontiguousarray(value).reshape(-1).view(np.uint8))

    def _feed_sequence(self, value: list[Any] | tuple[Any, ...]) -> None:
        self._feed_many(value, value)

    def _feed_dict(self, value: Mapping[Any, Any]) -> None:
        self._feed_many(value, [part for pair in value.items() for part in pair])

    def _feed_many(self, value: Any, parts: list[Any] | tuple[Any, ...]) -> None:
        if id(value) in self._above:
            return self._write("above", b"%d" % self._above[id(value)])
        self._hasher.update(b"%s of %d:" % (type(value).__name__.encode(), len(parts)))
        self._enter(value)
        for part in parts:
            self.feed(part)
        del self._above[id(value)]

    def _enter(self, value: Any) -> None:
        self._above[id(value)] = self._count
        self._count += 1

    def _feed_set(self, value: set[Any] | frozenset[Any]) -> None:
        """Hash the elements in an order that does not depend on their hashes."""
        if id(value) in self._sets_above:
            return self._write("set above")
        kinds = set(map(type, value))
        if kinds <= {str} or kinds <= {int}:
            return self._feed_many(value, sorted(value))
        walks = [(_Walk(self._sets_above | {id(value)}), one) for one in value]
        self._feed_many(value, sorted([walk.fingerprint(one) for walk, one in walks]))
        self.unknown += [one for walk, _ in walks for one in walk.unknown]

    def _feed_file(self, value: Any) -> None:
        """Hash type, name and mode of an open file; of one that is only read also its size and time."""
        self.feed(type(value))
        name, mode = getattr(value, "name", None), getattr(value, "mode", None)
        self.feed(name if isinstance(name, str | bytes) else None)
        self.feed(mode if isinstance(mode, str) else None)
        try:
            if value.readable() and not value.writable():
                found = os.stat(value.fileno())
                self.feed((found.st_size, found.st_mtime_ns))
        except (OSError, ValueError, AttributeError):
            self._write("closed")

    # -- objects ------------------------------------------------------------------------------------------------------

    def _feed_object(self, value: Any) -> None:
        """Hash an object by class and state; an object that is used twice is hashed once."""
        known = self._digests.get(id(value))
        if known is None:
            if id(value) in self._above:
                return self._write("above", b"%d" % self._above[id(value)])
            outer, self._hasher = self._hasher, xxhash.xxh3_128()
            self._enter(value)
            try:
                self._feed_state(value)
                known = self._digests[id(value)] = value, self._hasher.digest()
            finally:
                self._hasher = outer
                del self._above[id(value)]
        self._write("object", known[1])

    def _feed_state(self, value: Any) -> None:
        self.feed(type(value))
        try:
            if is_tensor(value):
                return self._feed_tensor(value)
            if isinstance(value, np.ndarray) and type(value).__reduce__ is np.ndarray.__reduce__:
                self._feed_array(np.asarray(value))
                return self._feed_attributes({n: one for n, one in vars(value).items() if n not in _OF_A_MEMMAP})
            if type(value).__module__ == "pydantic._internal._decorators" and hasattr(value, "cls_ref"):
                names = set(value.__dataclass_fields__) - {"cls_ref"}  # it contains the address of the class
                return self._feed_attributes({name: getattr(value, name) for name in names})
            if isinstance(value, pa.DataType):  # pickle forgets whether the items of a list can be null
                self._feed_str(str(value))
            reducer = cloudpickle.Pickler.dispatch_table.get(type(value))
            reduced = reducer(value) if reducer else value.__reduce_ex__(5)
        except RecursionError:
            raise
        except Exception as error:
            return self._add_unknown(value, error)
        if isinstance(reduced, str):
            if isinstance(value, np.ufunc) and not _is_found(value, reduced):  # of `frompyfunc`
                return self._add_unknown(value, "it is made of a function that cannot be looked at")
            module = getattr(value, "__module__", None) or ""
            self._write("name", f"{module}:{reduced} {version_of(module)}".encode())
            return self._feed_attributes({} if version_of(module) else getattr(value, "__dict__", {}))
        make, arguments, state, items, pairs, setter = [*list(reduced), None, None, None, None][:6]
        self.feed(make)
        self.feed(arguments)
        self._feed_attributes(state)
        self.feed(None if items is None else list(items))
        self.feed(None if pairs is None else list(pairs))
        self.feed(setter)

    def _feed_attributes(self, state: Any) -> None:
        """Hash the state of an object: attributes by name, because their order has no meaning."""
        if type(state) is dict and all(type(name) is str for name in state):
            self._feed_many(state, [part for pair in sorted(state.items(), key=_first) for part in pair])
        elif type(state) is tuple and len(state) == 2:  # attributes, and those in slots
            for part in state:
                self._feed_attributes(part)
        else:
            self.feed(state)

    def _feed_tensor(self, value: Any) -> None:
        torch = sys.modules["torch"]
        self.feed((str(value.dtype), tuple(value.shape), str(value.device), value.requires_grad))
        plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        flat = plain.as_strided((plain.numel(),), (1,))  # `reshape` keeps the stride of a single element
        self._write("tensor", flat.view(torch.uint8).numpy())
        self._feed_attributes(vars(value))

    def _feed_method(self, value: MethodType) -> None:
        self._write("method")
        self.feed(value.__func__)
        self.feed(value.__self__)

    def _feed_cached(self, value: Any) -> None:
        self._write("lru_cache")
        self.feed(value.__wrapped__)
        self.feed(value.cache_parameters())

    def _feed_cell(self, value: CellType) -> None:
        try:
            self.feed(value.cell_contents)
        except ValueError:
            self._write("empty")

    # -- code ---------------------------------------------------------------------------------------------------------

    def _feed_named(self, value: Any) -> None:
        """Hash the name of an installed function or class; number one of the user, which is hashed later and once."""
        if (name := installed_name(value)) is not None:
            return self._write("installed", name.encode())
        if id(value) not in self._numbers:
            self._numbers[id(value)] = value, len(self._numbers)
            self._undefined.append(value)
        self._write("number", b"%d" % self._numbers[id(value)][1])

    def _feed_module(self, value: ModuleType) -> None:
        if (version := version_of(value.__name__)) is not None:
            return self._write("module", f"{value.__name__} {version}".encode())
        self._feed_named(value)

    def _define(self, value: Any) -> None:
        if isinstance(value, FunctionType):
            self._define_function(value)
        elif isinstance(value, ModuleType):
            content = {n: one for n, one in vars(value).items() if n not in _PLACE_OF_MODULE | _TEXT_OF_MODULE}
            self._feed_attributes(content)
        else:
            self._write("class", value.__name__.encode())
            self.feed((type(value), *value.__bases__))
            self._feed_attributes({name: one for name, one in vars(value).items() if name not in _NOT_OF_A_CLASS})

    def _define_function(self, function: FunctionType) -> None:
        self._write("function")
        self._feed_code(function.__code__)
        self.feed((function.__defaults__, function.__kwdefaults__, function.__closure__))
        self._feed_attributes(function.__dict__)
        module = str(function.__globals__.get("__name__", ""))
        if (version := version_of(module)) is not None:  # a function that installed code has made
            return self._write("module", f"{module} {version}".encode())
        for use in dict.fromkeys(uses(function.__code__)):
            if use.level >= 0:
                self._feed_import(use, function.__globals__)
            else:
                self._feed_global(use, function.__globals__)

    def _feed_code(self, code: CodeType) -> None:
        self._write("code", code.co_code)
        self._write("exceptions", code.co_exceptiontable)
        self.feed((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags))
        self.feed((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))
        self.feed(code.co_consts)

    def _feed_global(self, use: GlobalUse, names: Mapping[str, Any]) -> None:
        value = names.get(use.name, _MISSING)
        if value is not _MISSING and use.name not in _PLACE_OF_MODULE:
            self._feed_path(use, value)

    def _feed_path(self, use: GlobalUse, value: Any) -> None:
        """Hash what a global is, or the attribute that the code reads from it if it is a module of the user."""
        path = list(use.path)
        while path and isinstance(value, ModuleType) and version_of(value.__name__) is None:
            value = getattr(value, path.pop(0), _MISSING)
        self.feed((use.name, *use.path))
        if value is _MISSING:
            self._write("missing")
        else:
            self.feed(value)

    def _feed_import(self, use: GlobalUse, names: Mapping[str, Any]) -> None:
        """Hash what a function imports when it runs: the module, or the names that it takes from the module."""
        name = use.name
        if use.level:
            package = str(names.get("__package__") or "").split(".")
            name = ".".join([*package[: len(package) - use.level + 1], *([name] if name else [])])
        self.feed(("import", name, use.path))
        if (version := version_of(name)) is not None:
            return self._write("module", version.encode())
        try:
            module = importlib.import_module(name)
        except Exception as error:
            return self._write("missing", type(error).__name__.encode())
        if not use.path:  # `import a.b` makes the name a
            return self.feed([sys.modules[name[:end]] for end in (*_dots(name), len(name))])
        for one in use.path:
            self.feed(getattr(module, one, None))


def _first(pair: tuple[str, Any]) -> str:
    return pair[0]


def _dots(name: str) -> list[int]:
    return [at for at, letter in enumerate(name) if letter == "."]


def _is_found(value: Any, name: str) -> bool:
    """Return True if a module has an object under this name, so that it can be unpickled."""
    module = pickle.whichmodule(value, name)  # type: ignore[attr-defined]
    return getattr(sys.modules.get(module), name, None) is value


def _methods(method: Callable[[_Walk, Any], None], kinds: Iterable[type]) -> dict[type, Callable[[_Walk, Any], None]]:
    return dict.fromkeys(kinds, method)


_BY_TYPE: dict[type, Callable[[_Walk, Any], None]] = {
    **_methods(_Walk._feed_constant, [type(None), bool, float, complex, type(...), type(NotImplemented)]),
    int: _Walk._feed_int,
    str: _Walk._feed_str,
    **_methods(_Walk._feed_bytes, [bytes, bytearray]),
    pickle.PickleBuffer: _Walk._feed_buffer,
    np.ndarray: _Walk._feed_array,
    **_methods(_Walk._feed_sequence, [list, tuple]),
    dict: _Walk._feed_dict,
    **_methods(_Walk._feed_set, [set, frozenset]),
    CellType: _Walk._feed_cell,
    CodeType: _Walk._feed_code,
    FunctionType: _Walk._feed_named,
    type: _Walk._feed_named,
    MethodType: _Walk._feed_method,
    **_methods(_Walk._feed_module, [ModuleType, LazyDoor]),
    functools._lru_cache_wrapper: _Walk._feed_cached,
}
"""Methods for exact types; anything else is hashed as an object."""
