"""Adds a feature to shardex: fields of `uuid.UUID`, which files and SQL hold as text."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, ClassVar

from shardex.features import Feature, StoredAs, Text


@dataclass(frozen=True, slots=True)
class Uuid(StoredAs):
    """A UUID, given as such or as text."""

    kind: ClassVar[str] = "uuid"

    @classmethod
    def of_hint(cls, hint: Any) -> Feature | None:
        """The class of UUIDs."""
        return cls() if hint is uuid.UUID else None

    @classmethod
    def of_value(cls, value: Any) -> Feature | None:
        """UUIDs."""
        return cls() if isinstance(value, uuid.UUID) else None

    def storage(self) -> Feature:
        """Text."""
        return Text()

    def to_storage(self, value: Any) -> str:
        """Return the text of a UUID."""
        return str(value if isinstance(value, uuid.UUID) else uuid.UUID(value))

    def from_storage(self, stored: Any) -> uuid.UUID:
        """Return the UUID of a text."""
        return uuid.UUID(stored)
