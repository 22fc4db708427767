"""Names for datasets: a catalog maps ``corpus@3`` to what has to be opened, and to its fingerprint.

It also has schemas and lenses under names and semantic versions, ``Point@1.2.0``.

In: names, and the `Content` of a dataset. Out: a `DatasetRecord`, and for ``@team/corpus`` what `open` has to open.
This room opens no data: it knows records, not datasets.

- `catalog`: the class `Catalog`: put, get, list, search, tag, history, remove; `resolve` for names that begin with "@"
- `names`: names, versions and tags
- `mounts`: which catalog a name is looked up in
- `records`: the record of a version as JSON, references, and what a search matches
- `addresses`: what records may name if they are not trusted
- `schemas`: comparison of schemas, classes and stubs made of them
- `releases`: schemas and lenses of a catalog: put, get, list, history, remove, load
- `field_mapping`: getter and putter of a lens that is data
- `publish`: a record becomes the next version of a name
- `backend`: what a storage for records implements, and which one a URL means
- `sqlite_file`: records in an SQLite file
- `record_folder`: records as JSON files in a folder or a bucket
- `redis`: records on a Redis server
- `atproto`: records of an account on ATProto
- `xrpc`: calls of a server of ATProto, and which server an account has
- `blobs`: blobs of an account as files
- `lexicon`: records as ATProto has them, and back
- `foreign_entries`: entries that atdata wrote, as records
- `cid`: content identifiers of ATProto
"""

from shardex.lazy_door import TYPES, import_later

__all__ = [
    "UNKNOWN",
    "Account",
    "Backend",
    "Catalog",
    "CatalogRecord",
    "Content",
    "DatasetRecord",
    "LensRecord",
    "Parent",
    "RecordQuery",
    "Resolved",
    "SchemaRecord",
    "StoredRecord",
    "XrpcClient",
    "check_cid",
    "cid_of",
    "class_of",
    "compare_schemas",
    "decode",
    "encode",
    "encode_dag_cbor",
    "find_account",
    "find_catalog",
    "is_reference",
    "parse",
    "resolve",
    "stub_of",
    "to_plain",
    "to_reference",
]

if TYPES:
    from shardex.catalog.backend import Backend
    from shardex.catalog.catalog import Catalog, Resolved, find_catalog, resolve
    from shardex.catalog.cid import check_cid, cid_of, encode_dag_cbor
    from shardex.catalog.foreign_entries import UNKNOWN
    from shardex.catalog.names import is_reference, parse
    from shardex.catalog.records import (
        CatalogRecord,
        Content,
        DatasetRecord,
        LensRecord,
        Parent,
        RecordQuery,
        SchemaRecord,
        decode,
        encode,
        to_plain,
        to_reference,
    )
    from shardex.catalog.schemas import class_of, compare_schemas, stub_of
    from shardex.catalog.xrpc import Account, StoredRecord, XrpcClient, find_account
else:
    import_later(
        __name__,
        {
            "backend": "Backend",
            "catalog": "Catalog Resolved find_catalog resolve",
            "cid": "check_cid cid_of encode_dag_cbor",
            "foreign_entries": "UNKNOWN",
            "names": "is_reference parse",
            "records": "CatalogRecord Content DatasetRecord LensRecord Parent RecordQuery SchemaRecord decode encode "
            "to_plain to_reference",
            "schemas": "class_of compare_schemas stub_of",
            "xrpc": "Account StoredRecord XrpcClient find_account",
        },
    )
