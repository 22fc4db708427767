import pytest

from shardex.testing import FormatCase, FormatSuite


class TestPackedMaps(FormatSuite):
    @pytest.fixture
    def case(self):
        samples = [{"n": k, "text": f"né {k}", "list": [k] * (k % 3)} for k in range(10)]
        return FormatCase("packed_maps", samples, {"n": int, "text": str, "list": list[int]})
