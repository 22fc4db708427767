"""Packages with entry points, as pip installs them, in a folder on the path of this process."""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from shardex import plugins

Install = Callable[[str, Mapping[str, str], Mapping[str, str]], None]
"""Installs a package: its name, references by entry point (``shardex.formats:name``), and the text of its modules."""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """A function that installs a package until the end of the test."""
    monkeypatch.syspath_prepend(tmp_path / "site")
    before = set(sys.modules)

    def add(package: str, entry_points: Mapping[str, str], modules: Mapping[str, str]) -> None:
        metadata = tmp_path / "site" / f"{package.replace('-', '_')}-1.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
        lines = [
            f"[{point.partition(':')[0]}]\n{point.partition(':')[2]} = {at}\n" for point, at in entry_points.items()
        ]
        (metadata / "entry_points.txt").write_text("".join(lines))
        for name, text in modules.items():
            (tmp_path / "site" / f"{name}.py").write_text(text)
        plugins.forget()

    yield add
    plugins.forget()
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]
