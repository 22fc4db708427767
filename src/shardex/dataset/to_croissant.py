"""Exports what a dataset is, for people and for search engines: Croissant metadata, and a card of Hugging Face.

The data stay as they are. They must be files that other tools read by the names of columns, in the folder of the
metadata, so that all of it can be published together. What a catalog knows of the dataset is taken from there.
"""

from __future__ import annotations

import datetime
import errno
import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from glob import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from shardex.catalog import Content, DatasetRecord, find_catalog
from shardex.dataset.references import content_of
from shardex.dataset.views import source_rows
from shardex.errors import AlreadyExistsError, ArgumentError, CatalogError, SchemaError, storage_errors
from shardex.features import ClassLabel, Feature, Features, Media, contains
from shardex.files import named_split
from shardex.formats import ShardRows
from shardex.formats.croissant import data_type
from shardex.sources import absolute_path, compression, place_of

if TYPE_CHECKING:
    from shardex.dataset.dataset import Dataset

_NAME, _CARD = "metadata.json", "README.md"
_FORMATS = {"parquet": "application/x-parquet", "jsonl": "application/jsonlines", "csv": "text/csv"}
_VOCABULARY = (
    *("arrayShape", "citeAs", "column", "containedIn", "equivalentProperty", "extract", "field", "fileObject"),
    *("fileProperty", "fileSet", "format", "includes", "isArray", "isLiveDataset", "jsonPath", "key", "md5"),
    *("parentField", "path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate", "separator"),
    *("source", "subField", "transform"),
)
"""Words of Croissant that are not of schema.org."""
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    **{name: f"cr:{name}" for name in _VOCABULARY},
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "description": {"@container": "@language"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "name": {"@container": "@language"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
}


def to_croissant(
    view: Dataset[Any], path: str | os.PathLike[str], given: Mapping[str, str | None], card: bool, overwrite: bool
) -> None:
    """Write the metadata of a dataset, and its card beside them; see `Dataset.to_croissant`."""
    target = absolute_path(os.fspath(path))
    folder, name = os.path.split(target) if target.endswith((".json", ".jsonld")) else (target, _NAME)
    for one in (name, *([_CARD] * card)):
        if not overwrite and os.path.lexists(existing := os.path.join(folder, one)):
            remedy = "overwrite=True replaces it" + ", and card=False writes none" * (one == _CARD)
            raise AlreadyExistsError(errno.EEXIST, f"a file exists there already; {remedy}", existing)
    content, files = content_of(view), _files(view, folder)
    about = _about(view, content, given)
    metadata = _metadata(content, files, about, folder)
    place = place_of(folder)
    place.put(name, msgspec.json.format(msgspec.json.encode(metadata), indent=2) + b"\n")
    if card:
        place.put(_CARD, _card(content, files, about).encode())


def _files(view: Dataset[Any], folder: str) -> list[str]:
    """Return the paths of the data relative to the folder of the metadata; raise an error if others cannot use them."""
    rows = source_rows(view.rows)
    assert isinstance(rows, ShardRows)
    if rows.opened.format not in _FORMATS or rows.opened.options.keys() - {"schema"}:
        raise ArgumentError(
            f"expected data of a format that Croissant can name columns of ({', '.join(_FORMATS)}), opened without "
            f"options, got {view!r:.200}; write them with sx.write(folder, ds, format='parquet')"
        )
    names = list(dict.fromkeys(rows.shard_names()))
    paths = [os.path.relpath(name, folder).replace(os.sep, "/") for name in names]
    for name, path in zip(names, paths, strict=True):
        packed = compression.plain_name(name)
        if not os.path.isfile(name) or path.startswith("../") or (packed is not None and packed[1] != "gzip"):
            raise ArgumentError(f"expected plain files or .gz in the folder {folder} or below, got {name}")
    return paths


def _about(view: Dataset[Any], content: Content, given: Mapping[str, str | None]) -> dict[str, Any]:
    """Return name, description, licence and so on: what the user says, or the catalog that the dataset came from."""
    rows = source_rows(view.rows)
    record: DatasetRecord | None = None
    assert isinstance(rows, ShardRows)
    if (known := rows.opened.known_as) is not None:
        with suppress(CatalogError):  # a reference has the name in a catalog of another machine
            catalog, rest = find_catalog(f"@{known[0]}")
            with catalog:
                record = catalog.get(rest if known[1] is None else f"{rest}@{known[1]}")
    found: dict[str, Any] = {
        "name": os.path.basename(content.urls[0].rstrip("/")).partition(".")[0] or "data",
        "description": f"{content.samples:,} samples of {content.features}.",
        "datePublished": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "version": "1.0.0",
    }
    if record is not None:
        stored = {"name": record.name, "description": record.description, "license": record.license}
        stored |= {"version": f"{record.version}.0.0", "datePublished": record.created[:10]}
        found |= {key: value for key, value in stored.items() if value} | {"keywords": record.tags}
    return found | {key: value for key, value in given.items() if value is not None}


# -- Croissant ------------------------------------------------------------------------------------------------


def _metadata(content: Content, files: Sequence[str], about: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return the JSON-LD."""
    encoding = {one: _encoding(content.format, one) for one in files}
    objects: list[dict[str, Any]] = [
        {
            "@type": "cr:FileObject",
            "@id": quote(path),
            "name": path,
            "contentUrl": path,
            "encodingFormat": encoding[path],
            **_size_and_checksum(os.path.join(folder, path)),
        }
        for path in files
    ]
    origin = {"fileObject": {"@id": quote(files[0])}}
    if len(files) > 1:
        includes = {"includes": [escape(one) for one in files], "encodingFormat": encoding[files[0]]}
        objects.append({"@type": "cr:FileSet", "@id": "files", "name": "files", **includes})
        origin = {"fileSet": {"@id": "files"}}
    fields = [_field(name, feature, origin) for name, feature in content.features.items()]
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        **about,
        "distribution": objects,
        "recordSet": [{"@type": "cr:RecordSet", "@id": "default", "name": "default", "field": fields}],
    }


def _encoding(format: str, path: str) -> str:
    return "text/tab-separated-values" if path.lower().endswith((".tsv", ".tab")) else _FORMATS[format]


def _size_and_checksum(path: str) -> dict[str, str]:
    with storage_errors(path, "read"), open(path, "rb") as file:
        return {
            "contentSize": f"{os.path.getsize(path)} B",
            "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
        }


def _field(name: str, feature: Feature, origin: Mapping[str, Any]) -> dict[str, Any]:
    kind = data_type(feature)
    if kind is None:
        raise SchemaError(
            f"expected a type that Croissant has (numbers, text, booleans, times, media, arrays), got {feature} - at "
            f"field {name}; open the data with a schema that has one, or describe the others: ds.drop({name!r})"
        )
    shape = {} if kind.shape is None else {"isArray": True, "arrayShape": ",".join(map(str, kind.shape))}
    classes = {"description": f"classes: {', '.join(feature.names)}"} if isinstance(feature, ClassLabel) else {}
    return {
        "@type": "cr:Field",
        "@id": f"default/{quote(name, safe='')}",
        "name": name,
        **classes,
        "dataType": f"sc:{kind.name}",
        **shape,
        "source": {**origin, "extract": {"column": name}},
    }


# -- Hugging Face ---------------------------------------------------------------------------------------------


def _card(content: Content, files: Sequence[str], about: Mapping[str, Any]) -> str:
    """Return the README: what Hugging Face reads, as YAML, then text."""
    names = {named_split(path) for path in files}
    split = (names.pop() if len(names) == 1 else None) or "train"
    size = {"num_bytes": content.bytes or 0, "num_examples": content.samples}
    features = None if content.fields is not None else _card_features(content.features, content.format)
    head = {
        **({"license": str(about["license"]).lower()} if "license" in about else {}),
        **({"tags": about["keywords"]} if about.get("keywords") else {}),
        "pretty_name": about["name"],
        "size_categories": [_size_category(content.samples)],
        "dataset_info": {
            **({} if features is None else {"features": features}),
            "splits": [{"name": split, **size}],
            "download_size": content.bytes or 0,
            "dataset_size": content.bytes or 0,
        },
        "configs": [{"config_name": "default", "data_files": [{"split": split, "path": [escape(p) for p in files]}]}],
    }
    lines = [f"{key}: {msgspec.json.encode(value).decode()}" for key, value in head.items()]  # JSON is YAML
    return "\n".join(["---", *lines, "---", "", f"# {about['name']}", "", about["description"], ""])


def _size_category(samples: int) -> str:
    """Return the words of Hugging Face for a number of samples.

    >>> _size_category(999), _size_category(1000), _size_category(5 * 10**9)
    ('n<1K', '1K<n<10K', '1B<n<10B')
    """
    names = ["1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T"]
    power = min(max(len(str(samples)) - 3, 0), len(names))
    return "n<1K" if power == 0 else f"n>{names[-1]}" if power == len(names) else f"{names[power - 1]}<n<{names[power]}"


def _card_features(features: Features, format: str) -> list[dict[str, Any]] | None:
    """Return the features in the form of a card; None if Hugging Face has not all of them."""
    if format != "parquet" and any(contains(one, Media) for one in features.values()):
        return None
    try:
        return [{"name": name, **_in_card(one.to_hf())} for name, one in features.items()]
    except (SchemaError, KeyError):
        return None


def _in_card(plain: Any) -> dict[str, Any]:
    """Return a feature of Hugging Face, given in its JSON form, as cards have it; KeyError for kinds without a form.

    >>> _in_card({"_type": "List", "feature": {"_type": "Value", "dtype": "int64"}, "length": 3})
    {'list': 'int64', 'length': 3}
    """
    kind = plain.get("_type") if isinstance(plain, dict) else None
    if kind == "Value":
        return {"dtype": plain["dtype"]}
    if kind in ("Image", "Audio", "Video"):
        return {"dtype": kind.lower()}
    if kind == "ClassLabel":
        return {"dtype": {"class_label": {"names": {str(k): name for k, name in enumerate(plain["names"])}}}}
    if kind in ("List", "LargeList"):
        item = _in_card(plain["feature"])
        return {"list": item.get("dtype", item), **({"length": plain["length"]} if "length" in plain else {})}
    if kind in ("Array2D", "Array3D", "Array4D", "Array5D"):
        return {"dtype": {f"array{kind[5]}_d": {"shape": plain["shape"], "dtype": plain["dtype"]}}}
    raise KeyError(kind)
