"""Which catalog a name such as ``@team/corpus`` is looked up in: the default one, or one that the user has mounted.

The default catalog is the path or URL in ``SHARDEX_CATALOG``, or an SQLite file of this user. Others are mounted under
a name in ``~/.config/shardex/catalogs.toml`` and in ``SHARDEX_CATALOGS`` (``team=s3://bucket/catalog,lab=/mnt/lab``),
which wins. The rule: if the first part of a name is that of a mounted catalog, the rest is looked up there and nowhere
else; every other name, with slashes or without, is one in the default catalog.
"""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

from shardex.catalog.names import PART
from shardex.errors import ArgumentError, nearest
from shardex.sources import is_url


class Mount(NamedTuple):
    """A catalog that is mounted under a name."""

    where: str
    trusted: bool | None = None
    """None: as for any catalog at this place."""


def default_catalog() -> str:
    """Return where the default catalog is: ``SHARDEX_CATALOG``, or a file in the user's folder for data."""
    data = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    return os.environ.get("SHARDEX_CATALOG") or os.path.join(data, "shardex", "catalog.db")


def mounts_file() -> str:
    """Return the path of the file with the mounted catalogs."""
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(config, "shardex", "catalogs.toml")


def mounts() -> dict[str, Mount]:
    """Return the mounted catalogs by name."""
    found = _of_file(mounts_file())
    for pair in filter(None, os.environ.get("SHARDEX_CATALOGS", "").split(",")):
        name, _, where = pair.strip().partition("=")
        found[name] = _checked("SHARDEX_CATALOGS", name, {"url": where})
    return found


def _of_file(path: str) -> dict[str, Mount]:
    if not os.path.exists(path):
        return {}
    import tomllib  # every `open` imports this module, few users have such a file

    try:
        with open(path, "rb") as file:
            plain = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{path}: expected a TOML file of catalogs by name, got: {error}") from None
    return {name: _checked(path, name, {"url": one} if isinstance(one, str) else one) for name, one in plain.items()}


def _checked(place: str, name: str, entry: Any) -> Mount:
    if not isinstance(entry, dict) or not entry.keys() <= {"url", "trusted"} or not re.fullmatch(PART, name):
        raise ArgumentError(
            f'{place}: expected catalogs by name with a url (and trusted): team = {{ url = "s3://bucket/catalog" }}, '
            f"got {name!r:.100}: {entry!r:.200}"
        )
    where, trusted = entry.get("url"), entry.get("trusted")
    if not isinstance(where, str) or not (is_url(where) or where.startswith(("/", "~"))):
        raise ArgumentError(f"{place}: expected a URL or an absolute path for the catalog {name}, got {where!r:.200}")
    if not isinstance(trusted, bool | None):
        raise ArgumentError(f"{place}: expected true or false for trusted of the catalog {name}, got {trusted!r:.50}")
    return Mount(where, trusted)


def mounted(name: str) -> Mount:
    """Return the catalog that is mounted under a name."""
    found = mounts()
    if name not in found:
        names = ", ".join(found) or "none is mounted"
        raise ArgumentError(
            f"expected the name of a mounted catalog ({names}), got {name!r}{nearest(name, found)}; mount it in "
            f"{mounts_file()} or in SHARDEX_CATALOGS"
        )
    return found[name]


def split_mount(text: str) -> tuple[Mount | None, str]:
    """Return the mounted catalog that a name without its "@" belongs to, None for the default one, and the rest."""
    first, slash, rest = text.partition("/")
    mount = mounts().get(first) if slash else None
    return (None, text) if mount is None else (mount, rest)
