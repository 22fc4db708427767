"""Types of the public API with torch, pandas and polars: `make check` runs mypy over this file, nothing calls it."""

from __future__ import annotations

import pandas as pd
import polars as pl
from torch.utils.data import DataLoader

import shardex as sx


def check_types() -> None:
    ds = sx.open(pd.DataFrame())
    sx.write("x", pl.DataFrame())
    DataLoader(ds, batch_size=4)
    DataLoader(ds.select("history"), batch_size=4, shuffle=True)
