"""Settings for all tests and doctests."""

import os
import tempfile

import pytest

pytest_plugins = ["tests.servers"]

# Hundreds of tests start Python processes. Without bytecode files each of these would compile all modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(autouse=True)
def _temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make temporary folders where pytest removes them, also those of examples in docstrings."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.getbasetemp()))
