"""JSON Lines, and `.json` files that hold one array: an index of lines, columns parsed by the kernel."""

from shardex.formats.jsonl.format import JsonLines, check_decode, decode_json, open, rows_of_lines
from shardex.formats.jsonl.writer import JSON_LINES

__all__ = [
    "JSON_LINES",
    "JsonLines",
    "check_decode",
    "decode_json",
    "open",
    "rows_of_lines",
]
