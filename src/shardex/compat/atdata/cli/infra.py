"""``atdata infra up``, ``down`` and ``status``: a Redis and an S3 server for development, as containers of Docker."""

import argparse
import shutil
import subprocess

from shardex.errors import ShardexError

_REDIS, _S3 = "atdata-redis", "atdata-minio"
"""Names of the containers, as of atdata; each keeps its data in the volume ``NAME-data``."""


class InfraError(ShardexError):
    """Docker is not installed, or refused a command."""


def add_infra(parser: argparse.ArgumentParser) -> None:
    """Add the commands."""
    actions = parser.add_subparsers(dest="action", required=True)
    up = actions.add_parser("up", help="start both servers, for programs of this machine")
    up.add_argument("--redis-port", type=int, default=6379)
    up.add_argument("--minio-port", type=int, default=9000)
    up.add_argument("--minio-console-port", type=int, default=9001)
    up.add_argument("--detach", "-d", action="store_true", help="servers always run in the background")
    down = actions.add_parser("down", help="stop both servers")
    down.add_argument("--volumes", "-v", action="store_true", help="remove their data too")
    actions.add_parser("status", help="show which servers run")


def run_infra(given: argparse.Namespace) -> int:
    """Run a command."""
    if given.action == "up":
        return local_up(given.redis_port, given.minio_port, given.minio_console_port)
    return local_down(given.volumes) if given.action == "down" else local_status()


def local_up(
    redis_port: int = 6379, minio_port: int = 9000, minio_console_port: int = 9001, detach: bool = True
) -> int:
    """Start both servers, in the background also without `detach`; those that run already stay."""
    command = ["redis-server", "--appendonly", "yes", "--maxmemory-policy", "noeviction"]
    _start(_REDIS, {redis_port: 6379}, "redis:7-alpine", *command)
    ports = {minio_port: 9000, minio_console_port: 9001}
    _start(_S3, ports, "minio/minio", "server", "/data", "--console-address", ":9001")
    print(f"Redis: localhost:{redis_port}; S3: http://localhost:{minio_port}, keys minioadmin")
    return 0


def local_down(remove_volumes: bool = False) -> int:
    """Stop both servers, and remove their data if wanted."""
    for name in filter(_state, (_REDIS, _S3)):
        _docker("rm", "--force", name)
    if remove_volumes:
        _docker("volume", "rm", "--force", f"{_REDIS}-data", f"{_S3}-data")
    return 0


def local_status() -> int:
    """Print which servers run; the exit code is 0 if both do."""
    states = {name: _state(name) or "not running" for name in (_REDIS, _S3)}
    for name, state in states.items():
        print(f"{name}: {state}")
    return int(any(not state.startswith("Up") for state in states.values()))


def _start(name: str, ports: dict[int, int], *image_and_command: str) -> None:
    """Start a container that only this machine reaches; one that stopped is made again, with its data."""
    state = _state(name)
    if state.startswith("Up"):
        print(f"{name} runs already")
        return
    if state:
        _docker("rm", "--force", name)
    published = [part for outer, inner in ports.items() for part in ("--publish", f"127.0.0.1:{outer}:{inner}")]
    _docker("run", "--detach", "--name", name, "--volume", f"{name}-data:/data", *published, *image_and_command)


def _state(name: str) -> str:
    """Return the state of a container, empty if there is none."""
    return _docker("ps", "--all", "--filter", f"name=^{name}$", "--format", "{{.Status}}").strip()


def _docker(*arguments: str) -> str:
    program = shutil.which("docker")
    if program is None:
        raise InfraError("expected Docker, which is not installed; without it, start redis-server itself")
    done = subprocess.run([program, *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise InfraError(f"docker {arguments[0]} failed: {done.stderr.strip()[-500:]}")
    return done.stdout
