"""Progress bars with a lock of their own.

All bars of `tqdm` share one multiprocessing lock with every forked child, and take it even when they are hidden: a
child that is killed while it holds the lock would block the others. `Bar` uses a thread lock, replaced after a fork.
"""

from __future__ import annotations

import os
import threading

from tqdm import tqdm

__all__ = ["Bar"]


class Bar(tqdm):  # type: ignore[misc]
    """A `tqdm` bar whose lock is not shared with other processes."""

    _lock = threading.RLock()


def _renew_lock() -> None:
    Bar.set_lock(threading.RLock())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)  # another thread of the parent may have held it
