"""Parquet files: row groups decoded into columns, and columns from the names of folders (``year=2024/``)."""
