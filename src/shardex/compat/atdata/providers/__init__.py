"""Databases of an index, with the tables and keys of atdata.

- `_base`: what a database does
- `_factory`: the database of a name
- `_sql`: tables, in SQLite (`_sqlite`) and PostgreSQL (`_postgres`)
- `_redis`: keys of Redis
"""

from shardex.compat.atdata.providers._base import IndexProvider
from shardex.compat.atdata.providers._factory import create_provider

__all__ = ["IndexProvider", "create_provider"]
