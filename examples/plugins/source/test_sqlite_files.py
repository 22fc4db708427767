import pytest

from shardex.errors import AddressError
from shardex.sources import open_source
from shardex.testing import SourceSuite


class TestSqliteFiles(SourceSuite):
    @pytest.fixture
    def place(self, tmp_path):
        return open_source(f"sqlfiles://{tmp_path}/files.db/weather")


def test_data_cannot_name_a_database(tmp_path):
    with pytest.raises(AddressError):
        open_source(f"sqlfiles://{tmp_path}/files.db", trusted=False)
