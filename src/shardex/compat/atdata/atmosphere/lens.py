"""Lenses as records: the schemas that they connect, and where their code is; code is never imported from a record."""

from typing import Any

from shardex.compat.atdata.atmosphere._lexicon_types import LexCodeReference, LexLensRecord
from shardex.compat.atdata.atmosphere._publishing import Loader, Publisher
from shardex.compat.atdata.atmosphere._types import AtUri
from shardex.compat.atdata.lens import Lens

__all__ = ["LensLoader", "LensPublisher"]


class LensPublisher(Publisher):
    """Publishes lenses."""

    PROCEDURE = "publishLens"

    def publish(
        self,
        *,
        name: str,
        source_schema_uri: str,
        target_schema_uri: str,
        code_repository: str,
        code_commit: str,
        getter_path: str,
        putter_path: str,
        description: str | None = None,
        language: str | None = None,
        metadata: dict[str, Any] | None = None,
        source_schema_version: str | None = None,
        target_schema_version: str | None = None,
        rkey: str | None = None,
    ) -> AtUri:
        """Publish a lens; paths of functions are such as ``package.module:function``."""
        paths = getter_path, putter_path
        getter, putter = (LexCodeReference(code_repository, code_commit, path, language=language) for path in paths)
        record = LexLensRecord(name, source_schema_uri, target_schema_uri, getter, putter)
        record.description, record.language, record.metadata = description, language, metadata
        record.source_schema_version, record.target_schema_version = source_schema_version, target_schema_version
        return self._create(record, rkey)

    def publish_from_lens(self, lens_obj: Lens[Any, Any], **about: Any) -> AtUri:
        """Publish a lens with the paths of its functions; `about` is what `publish` takes."""
        getter = f"{lens_obj._get.__module__}:{lens_obj._get.__qualname__}"
        put = lens_obj._put
        putter = f"{getter}.put" if put is None else f"{put.__module__}:{put.__qualname__}"
        return self.publish(getter_path=getter, putter_path=putter, **about)


class LensLoader(Loader):
    """Loads lenses."""

    KIND, CALLED, TYPE = "lens", "lens", LexLensRecord

    def get_typed(self, uri: str | AtUri) -> LexLensRecord:
        """Return the record of a lens as a `LexLensRecord`."""
        return LexLensRecord.from_record(self.get(uri))

    def list_all(self, repo: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Return the lenses of an account, by default of the own one."""
        found = self._all_from_appview("listLenses", "lenses", repo, limit)
        return self.client.list_lenses(repo=repo, limit=limit) if found is None else found

    def find_by_schemas(
        self, source_schema_uri: str, target_schema_uri: str | None = None, repo: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the lenses from a schema, to another one or to any."""
        wanted = {"sourceSchema": source_schema_uri}
        wanted |= {} if target_schema_uri is None else {"targetSchema": target_schema_uri}
        if repo is None and (found := self._from_appview("searchLenses", limit=100, **wanted)) is not None:
            return list(found.get("lenses") or [])
        return self._matching(repo, wanted)
