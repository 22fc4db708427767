"""`Dataset.process_shards`: a function for each shard, with a file of the shards that are done."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardex.compat.atdata._exceptions import PartialFailureError
from shardex.compat.atdata._logging import get_logger, log_operation
from shardex.errors import storage_errors
from shardex.sources import sync_file


def process_shards(
    work: Callable[[str], Any],
    shards: Sequence[str],
    checkpoint: str | os.PathLike[str] | None,
    on_shard_error: Callable[[str, Exception], None] | None,
) -> dict[str, Any]:
    """Return the results of a function of a shard, by shard, except for those that the checkpoint names."""
    done = None if checkpoint is None else Checkpoint(checkpoint)
    left = [shard for shard in shards if done is None or shard not in done]
    with log_operation("process_shards", total_shards=len(left)):
        results = _process(work, left, done, on_shard_error)
    if done is not None:
        done.remove()
    return results


def _process(
    work: Callable[[str], Any],
    shards: Sequence[str],
    done: "Checkpoint | None",
    on_shard_error: Callable[[str, Exception], None] | None,
) -> dict[str, Any]:
    results: dict[str, Any] = {}
    errors: dict[str, Exception] = {}
    for shard in shards:
        try:
            results[shard] = work(shard)
        except Exception as error:
            errors[shard] = error
            get_logger().warning("process_shards: shard failed %s: %s", shard, error)
            if on_shard_error is not None:
                on_shard_error(shard, error)
            continue
        if done is not None:
            done.add(shard)
    if errors:
        raise PartialFailureError(list(results), list(errors), errors, results)
    return results


class Checkpoint:
    """A text file with the names of the shards that are done, one a line."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._text = ""
        with storage_errors(path, "read"), suppress(FileNotFoundError):
            self._text = self._path.read_text("utf-8")
        self._names = set(self._text.split("\n")[:-1])  # what has no end of line was cut off by a crash

    def __contains__(self, shard: str) -> bool:
        return shard in self._names

    def add(self, shard: str) -> None:
        """Add a shard; the line is on the disk when this returns."""
        with storage_errors(self._path, "write"), open(self._path, "a", encoding="utf-8") as out:
            if self._text and not self._text.endswith("\n"):
                out.write("\n")
            self._text = "\n"
            out.write(f"{shard}\n")
            out.flush()
            sync_file(out.fileno())
        self._names.add(shard)

    def remove(self) -> None:
        """Remove the file."""
        with storage_errors(self._path, "remove"):
            self._path.unlink(missing_ok=True)
