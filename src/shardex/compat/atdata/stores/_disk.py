"""`LocalDiskStore`: shards in a folder of this machine, ``~/.atdata/data`` by default."""

import os
import secrets
from pathlib import Path
from typing import Any

from shardex.compat.atdata._checksums import ShardWriteResult, sha256_file
from shardex.compat.atdata._dataset import Dataset
from shardex.compat.atdata._write import write_shards
from shardex.sources import check_path

OF_WRITING = ("maxcount", "maxsize", "manifest")
"""Options that `write_shards` takes; others are of other stores."""
_MAXCOUNT = 100_000


class LocalDiskStore:
    """Shards in a folder for each dataset: ``root/PREFIX/data--NUMBER--000000.tar``."""

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self._root = (Path.home() / ".atdata" / "data" if root is None else Path(root)).expanduser().resolve()
        self._root.mkdir(parents=True, exist_ok=True)

    @property
    def root(self) -> Path:
        """The folder."""
        return self._root

    def write_shards(self, ds: Dataset[Any], *, prefix: str, **kwargs: Any) -> ShardWriteResult:
        """Write the samples to new shards, and return their paths, with checksums; `maxcount` samples in each."""
        return write_below(self._root, ds, prefix, kwargs)

    def read_url(self, url: str) -> str:
        """Return the path of a shard as it is."""
        return url

    def supports_streaming(self) -> bool:
        """Return True: shards are read where they are."""
        return True


def write_below(root: Path, ds: Dataset[Any], prefix: str, options: dict[str, Any]) -> ShardWriteResult:
    """Write the samples to new shards in a folder below `root`."""
    given = {"maxcount": _MAXCOUNT} | {name: one for name, one in options.items() if name in OF_WRITING}
    path = root / check_path(prefix) / f"data--{secrets.token_hex(4)}--%06d.tar"
    path.parent.mkdir(parents=True, exist_ok=True)
    paths = write_shards(ds.ordered(), path, **given).paths
    return ShardWriteResult(paths, {one: sha256_file(one) for one in paths})
