"""Commands for versions and integrity: `history`, `restore`, `clean`, `compact`, `verify` and `recover`.

`commands` registers them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from shardex import store
from shardex.cli.terminal import (
    AsJson,
    Format,
    Options,
    What,
    as_options,
    count_text,
    is_name,
    print_json,
    print_rows,
    printable,
    resolve,
    size_text,
)
from shardex.errors import AddressError, ArgumentError
from shardex.files import display_name
from shardex.native import native_place, versions_in
from shardex.sources import place_of

Path = Annotated[
    str, typer.Argument(metavar="PATH", help="A native dataset (made by shardex): its folder, or its @NAME.")
]


def history(path: Path, as_json: AsJson = False) -> None:
    """List the versions of a dataset, oldest first.

    Example: shardex history data/weather
    """
    found = store.history(_folder(path))
    if as_json:
        print_json([asdict(one) for one in found])
        return
    rows = [(one.number, f"{one.samples:,}", one.made, one.change) for one in found]
    print_rows([("version", "samples", "made", "change"), *rows])


def restore(
    path: Path,
    version: Annotated[int, typer.Argument(metavar="VERSION", help="Number of the version in the history.")],
    as_json: AsJson = False,
) -> None:
    """Publish an older version again, as a new version.

    Example: shardex restore data/weather 3
    """
    new = store.restore(_folder(path), version)
    if as_json:
        print_json({"version": new, "restored": version})
    else:
        print(f"version {new} has the content of version {version}")


def clean(
    path: Path,
    keep: Annotated[int, typer.Option(min=1, help="Number of latest versions to keep.")] = 1,
    grace: Annotated[
        float, typer.Option(min=0, help="Keep files that are younger than this many seconds.")
    ] = store.GRACE,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove old versions and the files that only they use.

    Example: shardex clean data/weather --keep 2
    """
    path = _folder(path)
    old = versions_in(place_of(path))[:-keep]
    what = f"versions {_span(old)} and " if old else ""
    if not yes and not typer.confirm(f"Remove {what}the files that no other version uses?", err=True):
        raise typer.Exit(1)
    removed = store.clean(path, keep, grace=grace)
    if as_json:
        print_json({"removed": removed})
        return
    for name in removed:
        print(printable(name))
    print(f"removed {count_text(len(removed), 'file')}")


def compact(
    path: Path,
    option: Annotated[
        list[str] | None,
        typer.Option("-o", metavar="NAME=VALUE", help="trust_paths=true: data files may be links out of the folder."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Write in this number of processes.")] = None,
    as_json: AsJson = False,
) -> None:
    """Merge edits and small files into large ones, as a new version.

    The files of older versions stay until `shardex clean` removes them.

    Example: shardex compact data/weather --workers 4
    """
    path = _folder(path)
    options = resolve([path], None, option)[2] if option else {}
    if others := options.keys() - {"trust_paths"}:
        raise ArgumentError(f"expected the option trust_paths, got {min(others)}")
    new = store.compact(path, workers=workers, **options)
    if as_json:
        print_json({"version": new})
    elif new is None:
        print("nothing to do: no edits and no adjacent small files")
    else:
        print(f"version {new}: {store.history(path)[-1].change}")


def verify(
    what: What,
    version: Annotated[int | None, typer.Option(help="Check only this version; all by default.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Read in this number of processes.")] = None,
    format: Format = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Check a whole dataset and list what is damaged.

    Native datasets are checked against their checksums; of datasets in other formats every sample is read. The exit
    code is 1 if something is damaged.

    Example: shardex verify data/weather
    """
    paths, name, options = _trusted(what, format, option)
    options.pop("version", None)  # of a name in a catalog
    problems = store.verify(paths, version, format=name, workers=workers, **options)
    place = native_place(paths)
    left = store.leftovers(paths) if place is not None else []
    if as_json:
        print_json({"problems": [_to_json(one) for one in problems], "leftovers": left})
    else:
        for problem in problems:
            print(printable(f"{problem.file or 'dataset'}: {as_options(problem.what)}{_extent(problem)}"))
        print(count_text(len(problems), "problem") if problems else "nothing is wrong")
        if place is not None and left:
            size = size_text(sum(place.stat(file).size for file in left))
            print(
                f"{count_text(len(left), 'file')} ({size}) in no version; shardex clean removes those that writers left"
            )
    if problems:
        raise typer.Exit(1)


def recover(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A damaged dataset in any format, or its @NAME; it is not changed.")
    ],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Where the new dataset is written.")],
    format: Format = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Copy every readable sample of a damaged dataset into a new one.

    The exit code is 1 if samples are lost.

    Example: shardex recover data/weather data/weather-saved
    """
    paths, name, options = _trusted([path], format, option)
    meant = options.pop("version", None)  # of a name in a catalog
    recovered = store.recover(paths, target, format=name, **options)
    if meant not in (None, recovered.version):
        recovered.notes.append(f"expected version {meant}, which {path} names, got the newest that is readable")
    if as_json:
        print_json({**asdict(recovered), "lost": [_to_json(one) for one in recovered.lost]})
    else:
        for one in recovered.lost:
            print(printable(f"lost: {one.file}: {as_options(one.why)}{_extent(one)}"))
        for note in recovered.notes:
            print(printable(f"note: {note}"))
        print(printable(f"saved {count_text(recovered.samples, 'sample')} in {recovered.path}"))
    if recovered.lost:
        raise typer.Exit(1)


# -- names of catalogs ------------------------------------------------------------------------------------------------


def _folder(path: str) -> str:
    """Return the folder or URL of a native dataset, which may be named as in a catalog: @corpus."""
    return str(_trusted([path], None, None)[0]) if is_name([path]) else path


def _trusted(what: list[str], format: str | None, option: list[str] | None) -> tuple[Any, str, dict[str, Any]]:
    """Return what `resolve` does; refuse a record that others wrote, as these commands read it without its limits."""
    paths, name, options = resolve(what, format, option)
    if options.pop("trusted", True) is False:
        raise AddressError(
            f"{what[0]}: expected a name in a catalog that only you write to, got a record of others; if you trust it, "
            f"give its path: {display_name(paths)}"
        )
    return paths, name, options


# -- text -----------------------------------------------------------------------------------------------------


def _to_json(found: store.Problem | store.Lost) -> dict[str, Any]:
    """Return a finding as JSON values; samples as [start, stop]."""
    samples = found.samples
    return {**asdict(found), "samples": None if samples is None else [samples.start, samples.stop]}


def _extent(found: store.Problem | store.Lost) -> str:
    words = [] if found.samples is None else [f"samples {_span(found.samples)}"]
    words += [f"fields {', '.join(found.fields)}"] if found.fields else []
    if isinstance(found, store.Problem):
        words += [f"versions {_span(found.versions)}"] if found.versions else []
    return f" ({'; '.join(words)})" if words else ""


def _span(numbers: Any) -> str:
    """Return a range of numbers as text.

    >>> _span([3]), _span(range(4, 8)), _span([])
    ('3', '4 to 7', 'none')
    """
    if not len(numbers):
        return "none"
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
