"""`StubManager`: source code of sample classes in a folder, so that editors and type checkers know stored schemas.

The folder is only written: classes are made of the records, and no file in it is ever imported.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardex.compat.atdata._lens_codec import generate_lens_stub
from shardex.compat.atdata._schema_codec import _schema_to_type, generate_module
from shardex.compat.atdata._type_utils import parse_semver
from shardex.errors import SchemaError, storage_errors
from shardex.sources import place_of

__all__ = ["DEFAULT_AUTHORITY", "DEFAULT_STUB_DIR", "StubManager"]

DEFAULT_STUB_DIR = Path.home() / ".atdata" / "stubs"
DEFAULT_AUTHORITY = "local"


class StubManager:
    """Writes ``STUBS/AUTHORITY/NAME_1_0_0.py`` for each schema, and ``lens_NAME_1_0_0.py`` for each lens."""

    def __init__(self, stub_dir: str | os.PathLike[str] | None = None) -> None:
        self._stub_dir = DEFAULT_STUB_DIR if stub_dir is None else Path(stub_dir)

    @property
    def stub_dir(self) -> Path:
        """The folder."""
        return self._stub_dir

    def ensure_stub(self, schema: Mapping[str, Any]) -> Path:
        """Write the module of a schema, unless it is there already, and return its path."""
        name, version = str(schema.get("name")).rpartition(".")[2], str(schema.get("version", "1.0.0"))
        path = self._path(name, version, _extract_authority(schema.get("$ref")))
        return self._write(path, generate_module(schema))

    def ensure_module(self, schema: Mapping[str, Any]) -> type[Any]:
        """Write the module of a schema, and return its class, which is made of the record."""
        self.ensure_stub(schema)
        return _schema_to_type(schema)

    def ensure_lens_stub(self, record: Mapping[str, Any]) -> Path:
        """Write the module that describes a lens, and return its path."""
        name = "lens_" + re.sub(r"\W", "_", str(record.get("name")))
        return self._write(self._path(name, str(record.get("version", "1.0.0"))), generate_lens_stub(record))

    def get_stub_path(self, name: str, version: str, authority: str = DEFAULT_AUTHORITY) -> Path | None:
        """Return the path of the module of a schema, `None` if it was not written."""
        path = self._path(name, version, authority)
        return path if path.exists() else None

    def list_stubs(self, authority: str | None = None) -> list[Path]:
        """Return the paths of all modules, or of those below one authority."""
        found = self._stub_dir.glob(f"{_checked(authority)}/*.py" if authority else "*/*.py")
        return sorted(path for path in found if path.name != "__init__.py")

    def list_lens_stubs(self, authority: str | None = None) -> list[Path]:
        """Return the paths of the modules that describe lenses."""
        return [path for path in self.list_stubs(authority) if path.name.startswith("lens_")]

    def clear_stub(self, name: str, version: str, authority: str = DEFAULT_AUTHORITY) -> bool:
        """Remove the module of a schema, and return whether there was one."""
        path = self.get_stub_path(name, version, authority)
        if path is not None:
            path.unlink()
        return path is not None

    def clear_stubs(self, authority: str | None = None) -> int:
        """Remove all modules, or those below one authority, and return how many there were."""
        found = self.list_stubs(authority)
        for path in found:
            path.unlink(missing_ok=True)
        return len(found)

    def _path(self, name: str, version: str, authority: str = DEFAULT_AUTHORITY) -> Path:
        numbers = "_".join(map(str, parse_semver(version)))
        return self._stub_dir / _checked(authority) / f"{_checked(name)}_{numbers}.py"

    def _write(self, path: Path, text: str) -> Path:
        with storage_errors(path, "write"):
            path.parent.mkdir(parents=True, exist_ok=True)
            for folder in (self._stub_dir, path.parent):
                (folder / "__init__.py").touch()
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                place_of(path.parent).put(path.name, text.encode())
        return path


def _checked(name: str) -> str:
    """Return a name that a module and a folder can have."""
    if not name.isidentifier():
        raise SchemaError(f"expected a name of Python, got {name!r:.100}")
    return name


def _extract_authority(schema_ref: str | None) -> str:
    """Return the folder for the schemas of a repository.

    >>> _extract_authority("atdata://did:plc:abc/schema/Digit@1.0.0")
    'did_plc_abc'
    """
    found = re.match("atdata://([^/]+)/", schema_ref or "")
    return re.sub(r"\W", "_", found[1]) if found else DEFAULT_AUTHORITY
