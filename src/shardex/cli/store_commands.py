"""The commands for datasets that live: `history`, `restore`, `clean`, `compact`, `verify` and `recover`.

Each is a few lines over the library; `cli.py` makes them commands.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from shardex import store
from shardex.cli.terminal import AsJson, Format, Options, What, print_json, print_rows, printable, resolve, size_text
from shardex.sources import place_of

__all__ = ["clean", "compact", "history", "recover", "restore", "verify"]

Path = Annotated[str, typer.Argument(metavar="PATH", help="The folder of a dataset of shardex's own.")]


def history(path: Path, as_json: AsJson = False) -> None:
    """List the versions of a dataset, the oldest first.

    Example: shardex history data/weather
    """
    found = store.history(path)
    if as_json:
        print_json([asdict(one) for one in found])
        return
    rows = [(one.number, f"{one.samples:,}", one.made, one.change) for one in found]
    print_rows([("version", "samples", "made", "change"), *rows])


def restore(
    path: Path,
    version: Annotated[int, typer.Argument(metavar="VERSION", help="Its number in the history.")],
    as_json: AsJson = False,
) -> None:
    """Make an older version current again, as a new version.

    Example: shardex restore data/weather 3
    """
    made = store.restore(path, version)
    if as_json:
        print_json({"version": made, "restored": version})
    else:
        print(f"version {made} is what version {version} was")


def clean(
    path: Path,
    keep: Annotated[int, typer.Option(min=1, help="How many of the last versions to keep.")] = 1,
    grace: Annotated[
        float, typer.Option(min=0, help="Leave files alone that are younger than so many seconds.")
    ] = store.GRACE,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove old versions, and all files that no other version names.

    Example: shardex clean data/weather --keep 2
    """
    old = store.versions_in(place_of(path))[:-keep]
    what = f"versions {_span(old)} and " if old else ""
    if not yes and not typer.confirm(f"Remove {what}the files that no other version names?", err=True):
        raise typer.Exit(1)
    removed = store.clean(path, keep, grace=grace)
    if as_json:
        print_json({"removed": removed})
        return
    for name in removed:
        print(printable(name))
    print(f"removed {_count(len(removed), 'file')}")


def compact(path: Path, as_json: AsJson = False) -> None:
    """Fold edits and small files into few large files, as a new version.

    Older versions keep their files until they are cleaned away.

    Example: shardex compact data/weather
    """
    made = store.compact(path)
    if as_json:
        print_json({"version": made})
    elif made is None:
        print("nothing to do: no edits, and no small files side by side")
    else:
        print(f"version {made}: {store.history(path)[-1].change}")


def verify(
    what: What,
    version: Annotated[int | None, typer.Option(help="Only this version; all if not given.")] = None,
    format: Format = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Check all of a dataset, and name what is damaged.

    Of shardex's own datasets every byte is held against its checksum, of other formats every sample is read. The exit
    code is 1 if something is damaged.

    Example: shardex verify data/weather
    """
    named, name, options = resolve(what, format, option)
    problems = store.verify(named, version, format=name, **options)
    place = store.native_place(named)
    left = store.leftovers(named) if place is not None else []
    if as_json:
        print_json({"problems": [_plain(one) for one in problems], "leftovers": left})
    else:
        for problem in problems:
            print(printable(f"{problem.file or 'all of it'}: {problem.what}{_extent(problem)}"))
        print(_count(len(problems), "problem") if problems else "nothing is wrong")
        if place is not None and left:
            size = size_text(sum(place.stat(file).size for file in left))
            print(f"no version names {_count(len(left), 'file')} ({size}); clean removes what writers left")
    if problems:
        raise typer.Exit(1)


def recover(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A damaged dataset of any format; it is not changed.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Where the new dataset goes.")],
    format: Format = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Save every whole sample of a damaged dataset into a new one.

    Example: shardex recover data/weather data/weather-saved
    """
    named, name, options = resolve([path], format, option)
    done = store.recover(named, target, format=name, **options)
    if as_json:
        print_json({**asdict(done), "lost": [_plain(one) for one in done.lost]})
        return
    for one in done.lost:
        print(printable(f"lost: {one.file}: {one.why}{_extent(one)}"))
    for note in done.notes:
        print(printable(f"note: {note}"))
    print(printable(f"saved {_count(done.samples, 'sample')} in {done.path}"))


# -- words ----------------------------------------------------------------------------------------------------


def _plain(found: store.Problem | store.Lost) -> dict[str, Any]:
    """Samples as their first number and the one after the last."""
    samples = found.samples
    return {**asdict(found), "samples": None if samples is None else [samples.start, samples.stop]}


def _extent(found: store.Problem | store.Lost) -> str:
    words = [] if found.samples is None else [f"samples {_span(found.samples)}"]
    if isinstance(found, store.Problem):
        words += [f"fields {', '.join(found.fields)}"] if found.fields else []
        words += [f"versions {_span(found.versions)}"] if found.versions else []
    return f" ({'; '.join(words)})" if words else ""


def _span(numbers: Any) -> str:
    """
    >>> _span([3]), _span(range(4, 8)), _span([])
    ('3', '4 to 7', 'none')
    """
    if not len(numbers):
        return "none"
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
