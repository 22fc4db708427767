"""The room store."""

from shardex.store.adopt import adopt
from shardex.store.edit import Edit, edit
from shardex.store.inventory import native_place, versions_in
from shardex.store.recover import Lost, Recovered, recover
from shardex.store.verify import Problem, leftovers, verify
from shardex.store.versions import GRACE, Version, clean, compact, history, restore

__all__ = [
    "GRACE",
    "Edit",
    "Lost",
    "Problem",
    "Recovered",
    "Version",
    "adopt",
    "clean",
    "compact",
    "edit",
    "history",
    "leftovers",
    "native_place",
    "recover",
    "restore",
    "verify",
    "versions_in",
]
