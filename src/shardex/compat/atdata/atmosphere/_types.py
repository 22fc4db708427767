"""`AtUri`: the address of a record on ATProto."""

from dataclasses import dataclass
from typing import Self

from shardex.errors import ArgumentError

LEXICON_NAMESPACE = "science.alt.dataset"


@dataclass
class AtUri:
    """The address of a record: whose it is, its collection, and its key there.

    >>> uri = AtUri.parse("at://alice.example.com/science.alt.dataset.entry/3kabc"); uri.authority, uri.rkey
    ('alice.example.com', '3kabc')
    >>> str(uri)
    'at://alice.example.com/science.alt.dataset.entry/3kabc'
    """

    authority: str
    """The DID or the handle of the account."""
    collection: str
    rkey: str

    @classmethod
    def parse(cls, uri: str) -> Self:
        """Return the parts of an address."""
        if not uri.startswith("at://"):
            raise ArgumentError(f"Invalid AT URI: must start with 'at://': {uri}")
        authority, *rest = uri.removeprefix("at://").split("/", 2)
        if len(rest) < 2:
            raise ArgumentError(f"Invalid AT URI: expected authority/collection/rkey: {uri}")
        return cls(authority, *rest)

    def __str__(self) -> str:
        return f"at://{self.authority}/{self.collection}/{self.rkey}"
