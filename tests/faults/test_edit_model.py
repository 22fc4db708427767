"""The model of `tests/edit_model.py` with many more random steps than in `tests/store/test_concurrent_edits.py`."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.edit_model import ConcurrentEdits
from tests.faults.processes import FULL


@pytest.mark.timeout(900)
@pytest.mark.skipif(not FULL, reason="takes minutes; the short form is tests/store/test_concurrent_edits.py")
def test_many_random_edits() -> None:
    run_state_machine_as_test(
        ConcurrentEdits,
        settings=settings(
            max_examples=300, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
