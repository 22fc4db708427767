"""Labels as records: names, with versions or without, that stand for datasets."""

from typing import Any

from shardex.compat.atdata.atmosphere._lexicon_types import LexLabelRecord
from shardex.compat.atdata.atmosphere._publishing import Loader, Publisher
from shardex.compat.atdata.atmosphere._types import AtUri
from shardex.errors import CatalogError

__all__ = ["LabelLoader", "LabelPublisher"]


class LabelPublisher(Publisher):
    """Publishes labels."""

    PROCEDURE = "publishLabel"

    def publish(
        self,
        name: str,
        dataset_uri: str,
        *,
        version: str | None = None,
        description: str | None = None,
        rkey: str | None = None,
    ) -> AtUri:
        """Publish a label for a dataset, and return its address."""
        return self._create(LexLabelRecord(name, dataset_uri, version=version, description=description), rkey)


class LabelLoader(Loader):
    """Loads labels."""

    KIND, CALLED, TYPE = "label", "label", LexLabelRecord

    def get_typed(self, uri: str | AtUri) -> LexLabelRecord:
        """Return a label as a `LexLabelRecord`."""
        return LexLabelRecord.from_record(self.get(uri))

    def list_all(self, repo: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Return the labels of an account, by default of the own one."""
        return list(self.client.list_labels(repo=repo, limit=limit))

    def resolve(self, handle_or_did: str, name: str, version: str | None = None) -> str:
        """Return the address of the dataset that a name stands for; without a version by the label created last."""
        found = self._from_appview("resolveLabel", handle=handle_or_did, name=name, version=version)
        if found is not None and isinstance(found.get("uri"), str):
            return str(found["uri"])
        wanted = {"name": name, **({} if version is None else {"version": version})}
        matching = self._matching(self.client.resolve_did(handle_or_did), wanted)
        if not matching:
            which = f" version {version!r}" if version else ""
            raise CatalogError(f"No label {name!r}{which} found for {handle_or_did!r}")
        return LexLabelRecord.from_record(max(matching, key=lambda one: str(one.get("createdAt", "")))).dataset_uri
