"""The room arrow."""

from shardex.arrow.batch_builder import BatchBuilder
from shardex.arrow.decode import column_of, list_of, plain_array
from shardex.arrow.decoded_table import CACHE_BYTES, DecodedTable
from shardex.arrow.ipc_footer import TAIL, Block, batch_is_packed, blocks_of, foot_size
from shardex.arrow.mapped_table import MappedTable
from shardex.arrow.sql_columns import (
    can_be_asked,
    presence,
    samples_table,
    side_by_side,
    stacked,
    table_of,
    taken,
    valid,
    widest,
)
from shardex.arrow.to_table import is_opaque, to_table
from shardex.arrow.types import (
    arrow_schema,
    arrow_type,
    check_names,
    features_of_arrow,
    is_list,
    items_per_row,
    numbers,
    schema_text,
    stored_type,
)

__all__ = [
    "CACHE_BYTES",
    "TAIL",
    "BatchBuilder",
    "Block",
    "DecodedTable",
    "MappedTable",
    "arrow_schema",
    "arrow_type",
    "batch_is_packed",
    "blocks_of",
    "can_be_asked",
    "check_names",
    "column_of",
    "features_of_arrow",
    "foot_size",
    "is_list",
    "is_opaque",
    "items_per_row",
    "list_of",
    "numbers",
    "plain_array",
    "presence",
    "samples_table",
    "schema_text",
    "side_by_side",
    "stacked",
    "stored_type",
    "table_of",
    "taken",
    "to_table",
    "valid",
    "widest",
]
