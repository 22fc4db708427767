"""Conformance tests for what packages add: derive a class from a suite, give it one fixture, and run pytest.

- `RowsSuite` compares a dataset over rows with a Python list of the same samples: in this thread, in eight threads, in
  a forked and in a spawned process, and after pickling
- `FormatSuite` writes samples with a format, and reads them: in all modes, remote, in parts, from damaged files
- `SourceSuite` reads and writes files at a place
- `ExecutorSuite` runs jobs with an executor

They need pytest.

>>> import pytest
>>> class TestMine(RowsSuite):
...     @pytest.fixture
...     def case(self):
...         samples = [{"x": k} for k in range(10)]
...         return Case(ListRows(samples), samples)
"""

from shardex.dataset import ListRows
from shardex.testing.executor_suite import ExecutorSuite
from shardex.testing.format_suite import FormatCase, FormatSuite
from shardex.testing.row_suite import Case, RowsSuite
from shardex.testing.source_suite import SourceSuite

__all__ = ["Case", "ExecutorSuite", "FormatCase", "FormatSuite", "ListRows", "RowsSuite", "SourceSuite"]
