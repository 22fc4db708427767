"""By what the formats of the five systems are recognised; `pyproject.toml` names these as entry points."""

from shardex.formats import Signature

BINS = Signature(
    format="shardex.compat.formats.bins.format:FORMAT",
    markers=("index.dat",),
    check="shardex.compat.formats.bins.format:recognise",
)
COLUMNS_TAR = Signature(
    format="shardex.compat.formats.columns_tar.format:FORMAT",
    markers=("index.sqlite",),
    check="shardex.compat.formats.columns_tar.format:recognise",
)
DATA_FORAGER = Signature(
    format="shardex.compat.formats.data_forager.format:FORMAT",
    markers=("index/sample_locations.bin",),
    check="shardex.compat.formats.data_forager.format:recognise",
)
