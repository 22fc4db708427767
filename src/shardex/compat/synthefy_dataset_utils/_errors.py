"""Errors that are those of shardex and those that the original raises, so that code which catches either goes on."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from shardex.compat.formats.columns_tar import TableError
from shardex.errors import ClosedError, FieldError, FormatError, NotFoundError, QueryError, SchemaError


class DatasetMissingError(NotFoundError, sqlite3.OperationalError):
    """A folder that has no table of samples."""


class DatasetClosedError(ClosedError, sqlite3.ProgrammingError):
    """A reader or a writer that was used after `close`."""


class ConditionError(QueryError, sqlite3.OperationalError, sqlite3.ProgrammingError):
    """A condition that SQLite does not accept."""


class UnknownColumnError(FieldError, sqlite3.OperationalError):
    """A field that the table does not have."""


class FieldNameError(SchemaError, sqlite3.OperationalError):
    """A name that a field cannot have."""


class LostArrayError(FormatError, KeyError):
    """An array that the table names and its tar does not have."""

    def __str__(self) -> str:
        return str(self.args[0])


@contextmanager
def errors_of_original() -> Iterator[None]:
    """Turn errors of the core into those above."""
    try:
        yield
    except ClosedError as error:
        raise DatasetClosedError(*error.args) from None
    except TableError:  # one of SQLite already
        raise
    except FormatError as error:
        raise LostArrayError(*error.args) from error
