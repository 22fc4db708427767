"""The former place of `infra`."""

from shardex.compat.atdata.cli.infra import local_down, local_status, local_up

__all__ = ["local_down", "local_status", "local_up"]
