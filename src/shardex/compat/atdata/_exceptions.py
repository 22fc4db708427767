"""The exceptions of atdata; each is also the error of shardex that means the same.

::

    AtdataError (ShardexError)
    ├── LensNotFoundError (LensError, ValueError)   no way from one sample type to another
    ├── SchemaError (errors.SchemaError)            fields that do not fit a sample type, or a wrong schema record
    ├── SampleKeyError (UnknownKeyError)            a key that no sample has
    ├── EntryNotFoundError (KeyError)               a name or an identifier that an index does not have
    ├── ShardError                                  a shard that cannot be read
    ├── BrokenTarError (FormatError, tarfile.ReadError)  a shard that is no tar, or not a whole one
    ├── PartialFailureError                         `Dataset.process_shards` failed for some shards
    └── AppViewError                                what an AppView of ATProto would raise
        ├── AppViewUnavailableError
        └── AppViewRequiredError
"""

import tarfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

from shardex import errors

_SHOWN = 5


class AtdataError(errors.ShardexError):
    """Root of the errors that code written for atdata catches."""

    _call: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        error = super().__new__(cls, *args)
        error._call = args, kwargs
        return error

    def __reduce__(self) -> tuple[Callable[[], Self], tuple[()]]:
        """An error is pickled with the arguments it was made of: errors cross worker processes."""
        args, kwargs = self._call
        return partial(type(self), *args, **kwargs), ()


class LensNotFoundError(AtdataError, errors.LensError, ValueError):
    """No registered lens leads from one sample type to another, and the fields of one are no part of the other's."""

    def __init__(
        self,
        source_type: type,
        view_type: type,
        available_targets: Sequence[tuple[type, str]] | None = None,
    ) -> None:
        self.source_type = source_type
        self.view_type = view_type
        self.available_targets = list(available_targets or ())
        source, view = source_type.__name__, view_type.__name__
        known = ", ".join(f"{target.__name__} (by {name})" for target, name in self.available_targets)
        super().__init__(
            f"no lens from {source} to {view}; lenses from {source} lead to: {known or 'no other type'}. Define one:\n"
            f"@lens\ndef {source.lower()}_to_{view.lower()}(source: {source}) -> {view}:\n    return {view}(...)"
        )


class SchemaError(AtdataError, errors.SchemaError):
    """Fields that do not fit a sample type, or a schema record that cannot be used.

    ``SchemaError(message)``, or ``SchemaError(type_name, expected_fields, actual_fields)``, whose message names the
    fields that are missing and those that are too many.
    """

    def __init__(
        self,
        sample_type_name: str,
        expected_fields: Sequence[str] | None = None,
        actual_fields: Sequence[str] | None = None,
    ) -> None:
        self.sample_type_name = sample_type_name
        self.expected_fields = list(expected_fields or ())
        self.actual_fields = list(actual_fields or ())
        if expected_fields is None and actual_fields is None:
            super().__init__(sample_type_name)
            return
        expected, actual = set(self.expected_fields), set(self.actual_fields)
        super().__init__(
            f"the fields do not fit {sample_type_name}: expected {', '.join(sorted(expected)) or 'none'}, "
            f"got {', '.join(sorted(actual)) or 'none'}; missing: {', '.join(sorted(expected - actual)) or 'none'}, "
            f"too many: {', '.join(sorted(actual - expected)) or 'none'}"
        )


class SampleKeyError(AtdataError, errors.UnknownKeyError):
    """A key that no sample of the dataset has."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"no sample of the dataset has the key {key!r}")


class EntryNotFoundError(AtdataError, KeyError):
    """An entry, a schema, a lens or a label that an index does not have."""

    def __str__(self) -> str:
        return str(self.args[0])

    @classmethod
    def of_label(cls, name: str, version: str | None) -> Self:
        """Return the error of a label."""
        return cls(f"No label with name: {name!r}" + (f" version: {version!r}" if version else ""))


class ShardError(AtdataError):
    """A shard that cannot be opened or read."""

    def __init__(self, shard_id: str, reason: str) -> None:
        self.shard_id = shard_id
        self.reason = reason
        super().__init__(f"cannot read shard {shard_id!r}: {reason}")


class BrokenTarError(AtdataError, errors.FormatError, tarfile.ReadError):
    """A shard that is no tar, or not a whole one."""


class CutTarError(BrokenTarError, errors.TruncatedShardError):
    """A shard of which the end is missing."""


class PartialFailureError(AtdataError):
    """`Dataset.process_shards` failed for some shards; the results of the others are in `results`."""

    succeeded_shards: list[str]
    failed_shards: list[str]
    errors: dict[str, Exception]
    results: dict[str, Any]

    def __init__(
        self,
        succeeded_shards: Sequence[str],
        failed_shards: Sequence[str],
        errors: Mapping[str, Exception],
        results: Mapping[str, object],
    ) -> None:
        self.succeeded_shards = list(succeeded_shards)
        self.failed_shards = list(failed_shards)
        self.errors = dict(errors)
        self.results = dict(results)
        count = len(self.failed_shards)
        shown = [f"  {shard}: {self.errors.get(shard)}" for shard in self.failed_shards[:_SHOWN]]
        if count > _SHOWN:
            shown.append(f"  and {count - _SHOWN} more")
        super().__init__(
            f"{count} of {count + len(self.succeeded_shards)} shards failed:\n" + "\n".join(shown) + "\n"
            "The results of the others are in .results; retry those in .failed_shards."
        )


class AppViewError(AtdataError):
    """Root of the errors about an AppView of ATProto."""


class AppViewUnavailableError(AppViewError):
    """An AppView that does not answer."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(f"the AppView at {url} is not available: {reason}")


class AppViewRequiredError(AppViewError):
    """An operation that needs an AppView where none is configured."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        super().__init__(f"{operation!r} needs an AppView, and none is configured")
