"""What one does with native datasets: edits, versions, upkeep, and the cache of samples that were made once.

In: paths or URLs, edits, functions. Out: new versions (of files of the room `native`), and lists of problems.

Edits:
- `edit`: transactions
- `new_field`: the values of a new field, given or computed by a function
- `adopt`: datasets whose samples stay in shards of another format
- `cache`: samples of a generator, which runs once
- `encode_ahead`: encodes media in threads before they are written
Upkeep:
- `versions`: history, restore, clean
- `compact`: merges edits and small files into few large ones
- `verify`: finds damage
- `recover`: copies all intact samples to a new dataset
- `readable_rows`: reads the intact samples of damaged files in other formats
"""

from shardex.store.adopt import adopt
from shardex.store.cache import cache
from shardex.store.compact import compact
from shardex.store.edit import Edit, edit
from shardex.store.encode_ahead import encode_ahead as encode_ahead
from shardex.store.recover import Lost, Recovered, recover
from shardex.store.verify import Problem, leftovers, verify
from shardex.store.versions import GRACE as GRACE
from shardex.store.versions import Version, clean, history, restore

__all__ = [
    "Edit",
    "Lost",
    "Problem",
    "Recovered",
    "Version",
    "adopt",
    "cache",
    "clean",
    "compact",
    "edit",
    "history",
    "leftovers",
    "recover",
    "restore",
    "verify",
]
