"""Examples in docstrings make temporary folders; here they make them where pytest cleans up."""

import tempfile

import pytest

pytest_plugins = ["tests.servers"]


@pytest.fixture(autouse=True)
def _temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.getbasetemp()))
