"""Fingerprints of functions and of the objects they use."""

from __future__ import annotations

from typing import Any

import xxhash

from shardex.workers.shared_arena import dump_value


def function_fingerprint(function: Any) -> str:
    """Return a text that changes when the code of a function, or a value that it uses, changes."""
    return xxhash.xxh3_64_hexdigest(dump_value(function))
