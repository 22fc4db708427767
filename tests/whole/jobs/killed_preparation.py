"""Preparation with workers that is killed: the same call continues it, and leaves nothing behind."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import shardex as sx

SCRIPT = """
import pathlib
import shardex as sx

def lengths(sample):
    if sample.id == 700 and not pathlib.Path("go").exists():
        pathlib.Path("here").touch()
        import time
        time.sleep(60)
    pathlib.Path("calls").joinpath(f"{sample.id}").touch()
    return {"id": sample.id, "length": len(sample.text)}

sx.write("lengths", "texts", transform=lengths, shard_rows=100, workers=2)
"""
sx.write("texts", [{"id": k, "text": "word " * (k % 9)} for k in range(1_000)])
calls = pathlib.Path("calls")
calls.mkdir()

run = subprocess.Popen([sys.executable, "-c", SCRIPT], start_new_session=True)
while not pathlib.Path("here").exists() or len(list(calls.iterdir())) < 300:
    assert run.poll() is None
    time.sleep(0.05)
os.killpg(run.pid, signal.SIGKILL)
run.wait()
before = {path.name for path in calls.iterdir()}
assert not pathlib.Path("lengths").exists()

for path in calls.iterdir():
    path.unlink()
pathlib.Path("go").touch()
subprocess.run([sys.executable, "-c", SCRIPT], check=True)
again = {path.name for path in calls.iterdir()}
assert len(again) < 1_000, "finished parts are not made again"
assert {int(name) for name in before | again} == set(range(1_000))
ds = sx.open("lengths")
assert ds["id"].tolist() == list(range(1_000)) and ds[8].length == 40

# A writer without a job leaves no half dataset; the next one removes its temporary folder.
WRITER = """
import os, signal
import shardex as sx
out = sx.create("log", {"text": str}, format="jsonl")
out.extend({"text": "y" * 4_000} for _ in range(3_000))
os.kill(os.getpid(), signal.SIGKILL)
"""
subprocess.run([sys.executable, "-c", WRITER], check=False)
assert not pathlib.Path("log").exists()
sx.write("log", [{"text": "again"}], format="jsonl")
assert [path.name for path in pathlib.Path().iterdir() if path.name.endswith((".tmp", ".job"))] == []
