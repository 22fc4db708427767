"""The logger of this package, which users can replace."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

from shardex.errors import ArgumentError


@runtime_checkable
class LoggerProtocol(Protocol):
    """A logger: one of `logging`, of structlog, or any object with these methods."""

    def debug(self, msg: str, *args: Any, **kwargs: Any) -> Any:
        """Log what helps to find defects."""

    def info(self, msg: str, *args: Any, **kwargs: Any) -> Any:
        """Log what was done."""

    def warning(self, msg: str, *args: Any, **kwargs: Any) -> Any:
        """Log what is probably wrong."""

    def error(self, msg: str, *args: Any, **kwargs: Any) -> Any:
        """Log what failed."""


_used: list[LoggerProtocol] = [logging.getLogger("atdata")]


def configure_logging(logger: LoggerProtocol) -> None:
    """Use another logger from now on; the default is the one named "atdata" of `logging`."""
    if not isinstance(logger, LoggerProtocol):
        raise ArgumentError(f"expected a logger with debug, info, warning and error, got {type(logger).__name__}")
    _used[0] = logger


def get_logger() -> LoggerProtocol:
    """Return the logger in use."""
    return _used[0]


@contextmanager
def log_operation(op_name: str, **context: Any) -> Iterator[None]:
    """Log when an operation starts, and how long it took until it ended or failed."""
    log, begin = get_logger(), time.monotonic()
    about = f" ({', '.join(f'{name}={value}' for name, value in context.items())})" if context else ""
    log.info("%s: started%s", op_name, about)
    try:
        yield
    except Exception:
        log.error("%s: failed after %.2fs%s", op_name, time.monotonic() - begin, about)
        raise
    log.info("%s: completed in %.2fs%s", op_name, time.monotonic() - begin, about)
