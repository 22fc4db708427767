"""The commands `shardex catalog ls`, `show`, `add`, `tag`, `history`, `diff`, `rm`, `export`, `import` and `stub`.

`commands` registers them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import chain, pairwise
from typing import Annotated, Any

import typer

from shardex.catalog import (
    Catalog,
    CatalogRecord,
    DatasetRecord,
    LensRecord,
    SchemaRecord,
    compare_schemas,
    decode,
    find_catalog,
    parse,
    stub_of,
    to_plain,
)
from shardex.cli.terminal import (
    AsJson,
    Format,
    Options,
    What,
    count_text,
    opened,
    print_json,
    print_rows,
    printable,
    size_text,
)
from shardex.errors import ArgumentError, storage_errors
from shardex.files import display_name


class RecordKind(StrEnum):
    """What a catalog has names for."""

    DATASET = "dataset"
    SCHEMA = "schema"
    LENS = "lens"


Where = Annotated[
    str | None,
    typer.Option("--catalog", metavar="WHERE", help="A file, a folder, a URL, or @NAME; by default yours."),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A name such as corpus, or @team/corpus.")]
Ref = Annotated[str, typer.Argument(metavar="NAME", help="A name, a version name@3, or a tag name:stable.")]
Kind = Annotated[RecordKind, typer.Option(help="What the names are names of.")]
Prefix = Annotated[str, typer.Argument(metavar="[PREFIX]", help="Only names that begin with this.")]

group = typer.Typer(help="Names for datasets: list, show, add, tag, compare.", no_args_is_help=True)


def _find(name: str, where: str | None) -> tuple[Catalog, str]:
    """Return the catalog that a name belongs to, and the name in it."""
    if not name.startswith("@"):
        return Catalog(where), name
    if where is not None:
        raise ArgumentError(f"expected a name without @ together with --catalog, got {name!r}")
    return find_catalog(name)


@group.command()
def ls(
    prefix: Prefix = "",
    search: Annotated[str | None, typer.Option(help="Only with these words, or words that begin so.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Only with this tag; may be repeated.")] = None,
    field: Annotated[list[str] | None, typer.Option(help="Only with this field; may be repeated.")] = None,
    kind: Kind = RecordKind.DATASET,
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """List the newest version of each name: of datasets, or of schemas or lenses.

    Example: shardex catalog ls team/ --search images
    """
    searched = search is not None or tag or field
    if searched and kind is not RecordKind.DATASET:
        raise ArgumentError(f"expected --search, --tag and --field with datasets only, got --kind {kind}")
    with Catalog(where) as catalog:
        about: dict[str, Any] = {"tags": tag or (), "fields": field or ()}
        found = catalog.search(search, **about) if searched else _names(catalog, kind).list(prefix)
        records = (record for record in found if record.name.startswith(prefix))
        if as_json:
            for record in records:
                print_json(to_plain(record))
            return
        rows = [_row(record) for record in records]
    if rows:
        shown = ("samples", "format") if kind is RecordKind.DATASET else ()
        print_rows([("name", *shown, "description"), *rows])


def _names(catalog: Catalog, kind: RecordKind) -> Any:
    """Return what lists, gets and removes records of a kind."""
    return {RecordKind.DATASET: catalog, RecordKind.SCHEMA: catalog.schemas, RecordKind.LENS: catalog.lenses}[kind]


def _row(record: CatalogRecord) -> tuple[str, ...]:
    shown = (f"{record.samples:,}", record.format) if isinstance(record, DatasetRecord) else ()
    return str(record), *shown, _first_line(record.description)


@group.command()
def show(name: Ref, kind: Kind = RecordKind.DATASET, where: Where = None, as_json: AsJson = False) -> None:
    """Show what a catalog knows about a dataset, a schema or a lens.

    Example: shardex catalog show corpus@3
    """
    catalog, ref = _find(name, where)
    with catalog:
        if kind is not RecordKind.DATASET:
            _show_release(_names(catalog, kind).get(ref), as_json)
            return
        record, tags = catalog.get(ref), catalog.tags(parse(ref).name)
    names = [tag for tag, version in tags.items() if version == record.version]
    if as_json:
        print_json({**to_plain(record), "named": names})
        return
    size = None if record.bytes is None else size_text(record.bytes)
    facts = {
        "name": f"{record}{''.join(f', :{tag}' for tag in names)}",
        "description": record.description,
        "tags": ", ".join(record.tags),
        "license": record.license,
        "url": display_name(record.what),
        "format": " ".join([record.format, *(f"{k}={v}" for k, v in record.options.items() if k != "schema")]),
        "samples": f"{record.samples:,}",
        "shards": record.shards,
        "bytes": size,
        "fingerprint": record.fingerprint,
        "parents": ", ".join(map(str, record.parents)),
        "created": record.created,
        "trusted": None if record.trusted else "no: it may not name local files and private addresses",
        **record.extra,
    }
    print_rows((fact, value) for fact, value in facts.items() if value not in (None, ""))
    print()
    print_rows([("field", "feature"), *((field, str(feature)) for field, feature in record.features.items())])


def _show_release(record: SchemaRecord | LensRecord, as_json: bool) -> None:
    plain = to_plain(record)
    if as_json:
        print_json(plain)
        return
    print_rows((fact, value) for fact, value in plain.items() if fact not in ("schema", "fields", "number"))
    print()
    fields: Mapping[str, Any] = record.features if isinstance(record, SchemaRecord) else record.fields or {}
    head = "feature" if isinstance(record, SchemaRecord) else "origin"
    print_rows([("field", head), *fields.items()])


@group.command()
def add(
    name: Name,
    what: What,
    description: Annotated[str | None, typer.Option(help="What it is; by default as in the newest version.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A word to search for; may be repeated.")] = None,
    license: Annotated[str | None, typer.Option(help="The licence of the data.")] = None,
    parent: Annotated[list[str] | None, typer.Option(help="A dataset it was made from; may be repeated.")] = None,
    expect: Annotated[int | None, typer.Option(min=0, help="Fail unless this is the newest version.")] = None,
    format: Format = None,
    option: Options = None,
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """Register a dataset as the next version of a name.

    Example: shardex catalog add corpus data/corpus --description "all text" --tag text
    """
    ds = opened(what, format, option)
    catalog, own = _find(name, where)
    about: dict[str, Any] = {"description": description, "tags": tag or None, "license": license}
    with catalog:
        record = catalog.put(own, ds, parents=parent or None, expect=expect, **about)
    if as_json:
        print_json(to_plain(record))
    else:
        print(printable(f"{record}: {count_text(record.samples, 'sample')} of {display_name(record.what)}"))


@group.command()
def tag(
    name: Name,
    tag: Annotated[str, typer.Argument(metavar="TAG", help="A word such as stable.")],
    version: Annotated[int | None, typer.Argument(metavar="[VERSION]", min=1, help="By default the newest.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the tag.")] = False,
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """Let a tag name a version from now on.

    Example: shardex catalog tag corpus stable 3
    """
    catalog, own = _find(name, where)
    with catalog:
        chosen = None if remove else catalog.get(own).version if version is None else version
        catalog.tag(own, tag, chosen)
    if as_json:
        print_json({"name": own, "tag": tag, "version": chosen})
    else:
        print(printable(f"{own}:{tag} is {'nothing now' if chosen is None else f'{own}@{chosen}'}"))


@group.command()
def history(name: Name, where: Where = None, as_json: AsJson = False) -> None:
    """List the versions of a name, oldest first, and how their fields changed.

    Example: shardex catalog history corpus
    """
    catalog, own = _find(name, where)
    with catalog:
        records, tags = catalog.history(own), catalog.tags(own)
    changes = [compare_schemas(old.features, new.features) for old, new in pairwise(records)]
    if as_json:
        print_json([{**to_plain(one), "named": _tags_of(one, tags)} for one in records])
        return
    rows = [
        (one.version, ", ".join(_tags_of(one, tags)), f"{one.samples:,}", one.created[:19], change)
        for one, change in zip(records, ["", *map(str, changes)], strict=True)
    ]
    print_rows([("version", "tags", "samples", "created", "fields"), *rows])


@group.command()
def diff(
    old: Ref,
    new: Annotated[str, typer.Argument(metavar="NAME", help="A name, a version or a tag to compare with.")],
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """Compare two versions, of one name or of two: their data, and whether their fields break readers.

    Example: shardex catalog diff corpus@2 corpus@3
    """
    before, after = _record(old, where), _record(new, where)
    change = compare_schemas(before.features, after.features)
    facts = {name: (getattr(before, name), getattr(after, name)) for name in _COMPARED}
    changed = {name: pair for name, pair in facts.items() if pair[0] != pair[1]}
    if as_json:
        print_json({"level": change.level, "fields": change.changes, "changed": changed})
        return
    print(printable(f"fields: {change}"))
    print_rows([(name, *map(_cell, pair)) for name, pair in changed.items()])


_COMPARED = ("fingerprint", "samples", "shards", "bytes", "format", "options", "urls", "license", "tags", "description")


@group.command()
def rm(
    name: Ref,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    kind: Kind = RecordKind.DATASET,
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """Remove a version, or a name with all its versions. The data stay where they are.

    Example: shardex catalog rm corpus@2
    """
    if not yes and not typer.confirm(f"Remove {name} from the catalog (not its data)?", err=True):
        raise typer.Exit(1)
    catalog, own = _find(name, where)
    with catalog:
        _names(catalog, kind).remove(own)
    if as_json:
        print_json({"removed": own})
    else:
        print(printable(f"removed {own}"))


@group.command(name="export")
def export_records(prefix: Prefix = "", where: Where = None, as_json: AsJson = False) -> None:
    """Print all versions of all names, also of schemas and lenses, as lines of JSON, which `import` reads.

    Example: shardex catalog export > catalog.jsonl
    """
    with Catalog(where) as catalog:
        for names in (_names(catalog, kind) for kind in RecordKind):
            for record in chain.from_iterable(names.history(one.name) for one in names.list(prefix)):
                print_json(to_plain(record))


@group.command(name="import")
def import_records(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Lines of JSON; - for stdin.")],
    trusted: Annotated[bool, typer.Option("--trusted", help="They may name local files and private hosts.")] = False,
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """Add exported records, with their version numbers.

    Example: shardex catalog import catalog.jsonl --trusted
    """
    with Catalog(where) as catalog:
        count = catalog.copy_from(_records_in(file), trusted=trusted)
    if as_json:
        print_json({"added": count})
    else:
        print(f"added {count_text(count, 'version')}")


def _records_in(file: str) -> Iterator[CatalogRecord]:
    if file == "-":
        yield from (decode(line, f"line {number}") for number, line in enumerate(sys.stdin.buffer, 1))
        return
    with storage_errors(file, "read"), open(file, "rb") as lines:
        yield from (decode(line, f"{file}: line {number}") for number, line in enumerate(lines, 1))


@group.command()
def stub(
    name: Ref,
    class_name: Annotated[str | None, typer.Option("--name", help="Name of the class.")] = None,
    kind: Kind = RecordKind.DATASET,
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """Print a class with the fields of a dataset or a schema, for editors and type checkers.

    Example: shardex catalog stub corpus > corpus.py
    """
    catalog, ref = _find(name, where)
    with catalog:
        record = _names(catalog, kind).get(ref)
    if kind is RecordKind.LENS:
        raise ArgumentError(f"expected a dataset or a schema, got the lens {record}")
    words = "".join(c if c.isalnum() else " " for c in record.name).split()
    text = stub_of(record.features, class_name or "".join(word[0].upper() + word[1:] for word in words))
    if as_json:
        print_json({"stub": text})
    else:
        print(text, end="")


# -- text -----------------------------------------------------------------------------------------------------


def _record(name: str, where: str | None) -> DatasetRecord:
    catalog, ref = _find(name, where)
    with catalog:
        return catalog.get(ref)


def _tags_of(record: DatasetRecord, tags: Any) -> list[str]:
    return [tag for tag, version in tags.items() if version == record.version]


def _first_line(text: str) -> str:
    return (text.splitlines() or [""])[0][:60]


def _cell(value: Any) -> str:
    text = display_name(value) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
