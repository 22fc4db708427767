"""Tells code of installed packages from code of the user, and finds which globals and imports a function uses.

Installed code (the standard library, packages in ``site-packages``, shardex itself) is named by module, qualified name
and version. Code of the user (scripts, notebooks, modules elsewhere) has to be looked at. `function_fingerprint` uses
both.
"""

from __future__ import annotations

import dis
import hashlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD"}
_SKIPPED = {"EXTENDED_ARG", "CACHE", "PUSH_NULL"}


class GlobalUse(NamedTuple):
    """A global that code reads, with the attributes that follow, or an import inside a function."""

    name: str
    """Name of the global, or of the module."""
    path: tuple[str, ...]
    """Attributes that are read from the global one after the other, or names that are imported from the module."""
    level: int = -1
    """For an import the number of dots of a relative one, 0 for an absolute one; -1 for a global."""


def uses(code: CodeType) -> Iterator[GlobalUse]:
    """Yield the globals and imports of code and of the functions in it, in the order of the code.

    >>> [(use.name, use.path) for use in uses((lambda x: os.path.join(x, sys.prefix)).__code__)]
    [('os', ('path', 'join')), ('sys', ('prefix',))]
    """
    steps = [step for step in dis.get_instructions(code) if step.opname not in _SKIPPED]
    for at, step in enumerate(steps):
        if step.opname in _LOADS:
            path = []
            for following in steps[at + 1 :]:
                if following.opname not in _ATTRIBUTES:
                    break
                path.append(following.argval)
            yield GlobalUse(step.argval, tuple(path))
        elif step.opname == "IMPORT_NAME":
            yield GlobalUse(step.argval, tuple(steps[at - 1].argval or ()), steps[at - 2].argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from uses(constant)


def installed_name(value: Any) -> str | None:
    """Return module, qualified name and version of a function or class that an installed package has under its name.

    >>> installed_name(os.path.join).split()[0], installed_name(lambda: 1)
    ('posixpath:join', None)
    """
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not isinstance(module, str) or (version := version_of(module)) is None:
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name} {version}" if found is value or _is_built_in(value) else None


def _is_built_in(value: Any) -> bool:
    """Return True for types of the interpreter and of C extensions that no module has under their name."""
    return isinstance(value, type) and not value.__flags__ & (1 << 9)  # Py_TPFLAGS_HEAPTYPE


@lru_cache(maxsize=4096)
def version_of(module: str) -> str | None:
    """Return the version of the installed package that a module belongs to; None if it is code of the user.

    >>> version_of("json") == sys.version.split()[0], version_of("__main__")
    (True, None)
    """
    top = module.partition(".")[0]
    if top in ("__main__", "__mp_main__"):
        return None
    file = _file_of(module) or _file_of(top)
    if file is None:
        return _python_version() if top in sys.stdlib_module_names else None
    parts = Path(file).parts
    if "site-packages" in parts or "dist-packages" in parts or top == "shardex":
        return _package_version(top, file)
    folders = [os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")]
    return _python_version() if os.path.realpath(file).startswith(tuple(folders)) else None


def _python_version() -> str:
    return sys.version.split()[0]


def _file_of(module: str) -> str | None:
    loaded = sys.modules.get(module)
    if loaded is None:
        with suppress(ImportError, ValueError, AttributeError):
            spec = importlib.util.find_spec(module.partition(".")[0])
            if spec is not None:
                return spec.origin if spec.has_location else next(iter(spec.submodule_search_locations or ()), None)
        return None
    file = getattr(loaded, "__file__", None)
    return str(file) if file else next(iter(getattr(loaded, "__path__", ())), None)


def _package_version(top: str, file: str) -> str:
    """Return the version that a package states, or that of its distributions, or a hash of the file."""
    version = getattr(sys.modules.get(top), "__version__", None)
    if isinstance(version, str):
        return version
    from importlib import metadata

    names = sorted(set(metadata.packages_distributions().get(top, ())))
    if names:
        return " ".join(f"{name} {metadata.version(name)}" for name in names)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if os.path.isfile(file) else "without a version"
