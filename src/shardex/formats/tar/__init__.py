"""WebDataset tars: an index of members, fields decoded by their extension."""

from shardex.formats.tar import fields
from shardex.formats.tar.blocks import BLOCK, end_of_tar, header, is_header_of, members_of, padding, tar_series
from shardex.formats.tar.members import check_end, check_truncated, until_cut, warn_if_truncated
from shardex.formats.tar.remote_headers import header_bytes

__all__ = [
    "BLOCK",
    "check_end",
    "check_truncated",
    "end_of_tar",
    "fields",
    "header",
    "header_bytes",
    "is_header_of",
    "members_of",
    "padding",
    "tar_series",
    "until_cut",
    "warn_if_truncated",
]
