"""Every format of the registry writes and reads samples as all formats do."""

import pytest

from shardex.testing import FormatCase, FormatSuite
from tests.formats.cases import NAMES, format_case


class TestFormats(FormatSuite):
    @pytest.fixture(params=NAMES)
    def case(self, request: pytest.FixtureRequest) -> FormatCase:
        return format_case(request.param)
