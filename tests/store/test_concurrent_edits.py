"""Several editors, a compactor and a cleaner in random order, with crashes, against a model in plain Python.

A short form; the long one is in `tests/faults/test_edit_model.py`.
"""

from __future__ import annotations

from hypothesis import settings

from tests.edit_model import ConcurrentEdits

TestConcurrentEdits = ConcurrentEdits.TestCase
TestConcurrentEdits.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
