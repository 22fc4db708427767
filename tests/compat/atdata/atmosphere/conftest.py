"""An account on a server that obeys a script."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shardex import storage
from shardex.compat.atdata.atmosphere import Atmosphere
from tests.servers.scripted_pds import HANDLE, PASSWORD, ScriptedPds, scripted_pds


@pytest.fixture
def server() -> Iterator[ScriptedPds]:
    with scripted_pds() as server:
        storage("at://", service=server.url, directory=server.url, timeout=2, deadline=3, retries=1)
        yield server
        storage("at://")


@pytest.fixture
def atmo(server: ScriptedPds) -> Atmosphere:
    made: Atmosphere = Atmosphere.login(HANDLE, PASSWORD)
    return made
