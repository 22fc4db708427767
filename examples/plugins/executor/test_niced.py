import os

import pytest

import shardex as sx
from shardex.testing import ExecutorSuite


class TestNiced(ExecutorSuite):
    @pytest.fixture
    def executor(self):
        return "niced"


def test_processes_are_nice(tmp_path):
    source = sx.open([{"x": k} for k in range(8)])
    ds = sx.write(tmp_path / "d", source, transform=lambda sample: {"nice": os.nice(0)}, executor="niced:5", workers=2)
    assert [sample.nice for sample in ds] == [os.nice(0) + 5] * 8
