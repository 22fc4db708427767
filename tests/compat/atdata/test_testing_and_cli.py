"""Datasets and samples for tests; the commands of atdata."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardex.compat.atdata import Dataset, DictSample, LocalDiskStore, main, packable, set_default_index, write_samples
from shardex.compat.atdata.cli import diagnose_redis
from shardex.compat.atdata.testing import make_dataset, make_samples, mock_index, tmp_dataset
from tests.compat.atdata.samples_for_manifests import Shot, shots
from tests.servers.redis_server import RedisServer

__all__ = ["tmp_dataset"]


@packable
class Every:
    name: str
    n: int
    x: float
    flag: bool
    blob: bytes
    image: NDArray[Any]
    tags: list[str]
    about: dict[str, Any]
    maybe: str | None
    mixed: int | str
    either: int | str | None = None
    default: NDArray[Any] | None = None


def test_make_samples() -> None:
    samples = make_samples(Every, n=3, seed=1)
    assert samples == make_samples(Every, n=3, seed=1)
    assert samples != make_samples(Every, n=3, seed=2)
    assert [one.name for one in samples] == ["name_0", "name_1", "name_2"]
    assert [one.n for one in samples] == [0, 1, 2]
    assert [one.flag for one in samples] == [True, False, True]
    assert samples[0].image.shape == (4, 4)
    assert samples[0].image.dtype == np.float32
    assert len(samples[0].blob) == 16
    assert samples[1].tags == ["tags_1_0", "tags_1_1", "tags_1_2"]
    assert (samples[0].default, samples[0].either) == (None, None)
    assert samples[1].mixed == "mixed_1" and samples[1].maybe == "maybe_1"
    assert make_samples(Shot, 2)[1].label == "label_1"
    assert len(make_samples(Every)) == 10
    with pytest.raises(TypeError, match="packable"):
        make_samples(int)


def test_make_dataset(tmp_path: Path) -> None:
    ds = make_dataset(tmp_path / "new", make_samples(Every, 4, seed=0), name="small")
    assert ds.list_shards() == [str(tmp_path / "new" / "small-000000.tar")]
    assert list(ds) == make_samples(Every, 4, seed=0)
    assert type(make_dataset(tmp_path, shots(2), sample_type=DictSample).head(1)[0]) is DictSample
    with pytest.raises(ValueError, match="at least one"):
        make_dataset(tmp_path, [])


def test_fixture(tmp_dataset: Dataset[Any]) -> None:
    assert [(one.name, one.value) for one in tmp_dataset[:2]] == [("s0", 0), ("s1", 1)] and len(tmp_dataset) == 10


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = str(tmp_path / "a.tar"), str(tmp_path / "b.tar")
    write_samples(shots(3), a)
    write_samples([DictSample(n="text", label="a", new=1)], b)
    assert main(["inspect", a]) == 0
    assert "label" in capsys.readouterr().out
    assert main(["preview", a, "--limit", "2"]) == 0
    assert "t1" in (shown := capsys.readouterr().out)
    assert "t2" not in shown
    assert main(["schema", "show", a]) == 0
    assert "Fields (8):\n  image: bytes\n  label: str\n" in capsys.readouterr().out
    assert main(["schema", "diff", a, a]) == 0
    assert main(["schema", "diff", a, b]) == 1
    shown = capsys.readouterr().out
    assert "Added:\n  + new: int\nRemoved:\n  - blob: bytes\n" in shown
    assert "Changed:\n  ~ n: int -> str\n" in shown
    assert main(["schema", "diff", a, str(tmp_path / "gone.tar")]) == 2
    assert main(["version"]) == 0
    assert main(["inspect", str(tmp_path / "gone.tar")]) == 1


def test_commands_on_an_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = mock_index(tmp_path, data_store=LocalDiskStore(tmp_path / "store"))
    set_default_index(index)
    try:
        entry = index.write_samples(shots(3), name="shots")
        assert main(["verify", "@local/shots"]) == 0
        assert "[ok]" in (shown := capsys.readouterr().out) and "All checksums verified." in shown
        assert main(["schema", "show", "@local/shots"]) == 0
        assert "  label: str\n" in capsys.readouterr().out
        Path(entry.data_urls[0]).write_bytes(b"changed")
        assert main(["verify", "shots"]) == 1
        assert "[mismatch]" in capsys.readouterr().out
        assert main(["verify", "none"]) == 1
        assert "No entry with name: none" in capsys.readouterr().err
    finally:
        set_default_index(None)


def test_diagnosis_of_a_redis(running_redis: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnose_redis("127.0.0.1", running_redis.port, password=running_redis.password) == 0
    assert "[ok] every write is logged" in capsys.readouterr().out
    assert main(["diagnose", "--host", "127.0.0.1", "--port", str(running_redis.port)]) == 1  # needs the password
    assert "[wrong] connection" in capsys.readouterr().out


DOCKER = """#!/bin/sh
echo "$@" >> "$LOG"
case "$*" in *redis*Status*) echo "$STATE";; esac
"""


def test_servers_in_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands that a program in the place of Docker is given."""
    log, program = tmp_path / "log", tmp_path / "docker"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["infra", "status"]) == 1
    assert "Docker, which is not installed" in capsys.readouterr().err
    program.write_text(DOCKER)
    program.chmod(0o755)
    monkeypatch.setenv("LOG", str(log))
    monkeypatch.setenv("STATE", "Up 2 hours")
    assert main(["local", "up", "-d", "--minio-port", "9100"]) == 0
    assert "run --detach --name atdata-minio" in (run := log.read_text())
    assert "--publish 127.0.0.1:9100:9000" in run and "name atdata-redis " not in run
    assert "atdata-redis runs already" in capsys.readouterr().out
    assert main(["infra", "status"]) == 1
    assert "atdata-redis: Up 2 hours\natdata-minio: not running\n" in capsys.readouterr().out
    assert main(["infra", "down", "--volumes"]) == 0
    assert "rm --force atdata-redis\n" in log.read_text()
    assert log.read_text().endswith("volume rm --force atdata-redis-data atdata-minio-data\n")
