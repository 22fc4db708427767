"""Frames: whole again however a socket cuts them."""

from __future__ import annotations

import random

from shardex.workers.worker_process import Frames, Kind, frame


def test_frames_come_in_pieces() -> None:
    sent = [(Kind.TASK, 2**63, b""), (Kind.FREE, 0, b"x" * 3000), (Kind.VALUE, 7, b"y"), (Kind.JOB, 1, b"z" * 70_000)]
    stream = b"".join(frame(*one) for one in sent)
    chance = random.Random(0)
    for largest in (1, 20, 5000, len(stream)):
        frames, got, at = Frames(), [], 0
        while at < len(stream):
            size = chance.randint(1, largest)
            got += frames.feed(stream[at : at + size])
            at += size
        assert got == sent
