"""``atdata diagnose``: settings of a Redis with which an index loses data."""

from typing import Any

from shardex.compat.atdata._helpers import _imported

__all__ = ["diagnose_redis"]


def diagnose_redis(host: str = "localhost", port: int = 6379, **options: Any) -> int:
    """Print what is right and wrong about a Redis; the exit code is 0 if nothing is wrong.

    Other arguments are those of the client: password and so on.
    """
    redis = _imported("redis", "the diagnosis of a Redis")
    client = redis.Redis(host=host, port=port, socket_connect_timeout=5, socket_timeout=5, **options)
    try:
        found: dict[str, Any] = client.info()
    except redis.RedisError as error:
        print(f"[wrong] connection to {host}:{port}: {error}; start a server: atdata infra up")
        return 1
    finally:
        client.close()
    policy, most = found.get("maxmemory_policy", "noeviction"), found.get("maxmemory", 0)
    removes = bool(most) and policy != "noeviction"
    checks = [
        (True, f"connection: Redis {found.get('redis_version')} at {host}:{port}"),
        (
            bool(found.get("aof_enabled")),
            "every write is logged (appendonly yes)"
            if found.get("aof_enabled")
            else "a crash loses writes: set appendonly yes",
        ),
        (
            found.get("rdb_last_bgsave_status") == "ok",
            f"last snapshot: {found.get('rdb_last_bgsave_status')}",
        ),
        (
            not removes,
            f"{policy} removes keys when memory is full: set maxmemory-policy noeviction"
            if removes
            else "no keys are removed when memory is full",
        ),
        (
            not most or found.get("used_memory", 0) < 0.9 * most,
            f"memory: {found.get('used_memory', 0)} bytes used, of at most {most or 'all'}",
        ),
    ]
    for right, text in checks:
        print(f"[{'ok' if right else 'wrong'}] {text}")
    return int(not all(right for right, _ in checks))
