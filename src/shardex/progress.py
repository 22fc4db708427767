"""Progress bars: those of notebooks where they can be shown, otherwise plain ones, with a lock of their own.

All bars of `tqdm` share one multiprocessing lock with every forked child, and take it even when they are hidden: a
child that is killed while it holds the lock would block the others. `Bar` uses a thread lock, replaced after a fork.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from typing import Any

with warnings.catch_warnings():  # about notebooks without ipywidgets, which get plain bars
    warnings.simplefilter("ignore")
    from tqdm.autonotebook import tqdm

__all__ = ["Bar"]

_IN_NOTEBOOK = "ipykernel.zmqshell" in sys.modules


class Bar(tqdm):  # type: ignore[misc]
    """A `tqdm` bar whose lock is not shared with other processes; by default hidden if nobody sees it."""

    _lock = threading.RLock()

    def __init__(self, *args: Any, **options: Any) -> None:
        if _IN_NOTEBOOK and options.get("disable", False) is None:  # it is no terminal, but shows what is written
            options["disable"] = False
        super().__init__(*args, **options)


def _renew_lock() -> None:
    Bar.set_lock(threading.RLock())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)  # another thread of the parent may have held it
