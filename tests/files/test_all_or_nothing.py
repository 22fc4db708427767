"""`AllOrNothing` and `StagedWriter`: what close and abort do, in any order and after errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardex.errors import ArgumentError, ClosedError
from shardex.files import AllOrNothing, StagedWriter


class Recorder(AllOrNothing):
    """Records the calls of its duties; publishing fails on request."""

    path = "target"

    def __init__(self, error: BaseException | None = None) -> None:
        self.calls: list[str] = []
        self._error = error

    def _publish(self) -> None:
        self.calls.append("publish")
        if self._error is not None:
            raise self._error

    def _discard(self) -> None:
        self.calls.append("discard")


def test_duties_are_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        AllOrNothing()  # type: ignore[abstract]


def test_close_publishes_once() -> None:
    writer = Recorder()
    writer.close()
    writer.close()
    writer.abort()
    assert writer.calls == ["publish"]


def test_abort_discards_once_and_close_raises_afterwards() -> None:
    writer = Recorder()
    writer.abort()
    writer.abort()
    with pytest.raises(ClosedError, match="target: expected an open writer, this one was aborted; nothing was written"):
        writer.close()
    assert writer.calls == ["discard"]


def test_failed_publish_discards() -> None:
    writer = Recorder(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        writer.close()
    with pytest.raises(ClosedError, match="was aborted"):
        writer.close()
    assert writer.calls == ["publish", "discard"]


def test_with_block_closes_or_aborts() -> None:
    with Recorder() as writer:
        pass
    assert writer.calls == ["publish"]
    with pytest.raises(KeyError), Recorder() as writer:
        raise KeyError("a")
    assert writer.calls == ["discard"]


class Lines(StagedWriter):
    """Writes one file of lines when it finishes."""

    def __init__(self, path: Path, mode: str = "create", lines: list[bytes | str] | None = None) -> None:
        super().__init__(path, mode, r".*\.txt")
        with self._abort_on_error():
            self._number = self._stage.next_number("part", ".txt")
        self._lines = lines or []

    def _finish(self) -> None:
        self._stage.append(f"part-{self._number:05d}.txt", self._lines, 0)


def test_staged_writer_publishes_its_files(tmp_path: Path) -> None:
    Lines(tmp_path / "d", lines=[b"a"]).close()
    Lines(tmp_path / "d", "append", lines=[b"b"]).close()
    assert {path.name: path.read_bytes() for path in (tmp_path / "d").iterdir()} == {
        "part-00000.txt": b"a",
        "part-00001.txt": b"b",
    }


def test_failed_staged_writer_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        Lines(tmp_path / "d", lines=["text"]).close()
    Lines(tmp_path / "d").abort()
    assert list(tmp_path.iterdir()) == []


def test_staged_writer_whose_constructor_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "z.txt").write_bytes(b"")
    with pytest.raises(ArgumentError, match="pass a prefix that sorts after it"):
        Lines(tmp_path / "d", "append")
    assert [path.name for path in tmp_path.iterdir()] == ["d"]
