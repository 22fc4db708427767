"""Messages between a pool and its workers."""

from __future__ import annotations

import random

from shardex.workers.worker_process import FrameReader, Kind, frame


def test_frames_are_read_from_pieces_of_any_size() -> None:
    sent = [(Kind.TASK, 2**63, b""), (Kind.FREE, 0, b"x" * 3000), (Kind.VALUE, 7, b"y"), (Kind.JOB, 1, b"z" * 70_000)]
    stream = b"".join(frame(*one) for one in sent)
    rng = random.Random(0)
    for largest in (1, 20, 5000, len(stream)):
        frames, got, at = FrameReader(), [], 0
        while at < len(stream):
            size = rng.randint(1, largest)
            got += frames.feed(stream[at : at + size])
            at += size
        assert got == sent
