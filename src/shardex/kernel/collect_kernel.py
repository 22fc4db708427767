"""`collect_kernel`: the C code that copies samples into buffers (`_collect.c`), None where it is not used.

`shardex.columns` has the Python side of it, and encoders that do the same without C.
"""

from __future__ import annotations

from typing import Any

from shardex.kernel.buffers import KERNEL

try:
    from shardex.kernel import _collect  # type: ignore[attr-defined]
except ImportError:  # it was installed without a compiler
    _collect = None

collect_kernel: Any = None if KERNEL == "numpy" else _collect
