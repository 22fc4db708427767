from itertools import pairwise

import numpy as np
import pytest
from sample_pairs import PairRows

import shardex as sx
from shardex.testing import Case, RowsSuite


class TestPairs(RowsSuite):
    @pytest.fixture
    def case(self, tmp_path):
        samples = [{"x": np.arange(k, k + 3), "s": f"né {k}"} for k in range(9)]
        ds = sx.write(tmp_path / "d", samples)
        expected = [{"a.x": a["x"], "a.s": a["s"], "b.x": b["x"], "b.s": b["s"]} for a, b in pairwise(samples)]
        return Case(PairRows(ds), expected)
