"""Lines: JSON Lines as samples of fields, text files as samples of one line each.

The index is found at the speed of the disk (`Lines`), then any line is a byte range: `read` fetches many by one call
of the kernel and parses them. Blank lines of JSON files, a byte order mark and carriage returns are no data. A folder
that data-forager indexed is read through that index. Nothing is written beside the lines but our own index.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import msgspec
import numpy as np

from shardex.codec import by_name
from shardex.columns import Columns
from shardex.errors import ClosedError, FormatError, SchemaError, UnknownFormatError
from shardex.formats import forager, plain
from shardex.gather import Bytes, Integers, line_ends
from shardex.index import Index, Scan
from shardex.ranges import ByteRange
from shardex.records import PlacedRows, Places
from shardex.rows import check_fields
from shardex.schema import Array, Feature, Features, Optional, Struct, Text
from shardex.schema import Bytes as BytesFeature
from shardex.schema import Sequence as SequenceFeature
from shardex.shards import Files, natural_order
from shardex.source import Source
from shardex.staging import Stage
