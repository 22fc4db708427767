"""`sx.cache`: a generator runs once; a change makes the samples again; nothing but whole caches is ever visible."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash

import shardex as sx
from shardex.errors import (
    AlreadyExistsError,
    ArgumentError,
    CacheChangedError,
    SchemaError,
    VersionExpired,
)
from shardex.media import encode_image
from shardex.store import history, leftovers
from tests.waiting import becomes_true

FIELDS = {"n": int, "x": sx.Array("float32", (3,)), "label": sx.ClassLabel(("cat", "dog"))}


def sample(n: int, add: int = 0) -> dict[str, Any]:
    return {"n": n + add, "x": np.full(3, n, np.float32), "label": n % 2}


class Calls(threading.local):
    """Number of calls; fingerprints do not look into an object of this type, which changes."""

    count = 0


calls = Calls()


class Counted:
    """A generator function that counts its calls; `add` is part of what it makes."""

    def __init__(self, count: int = 5, add: int = 0) -> None:
        self.count, self.add = count, add

    def __call__(self) -> Iterator[dict[str, Any]]:
        calls.count += 1
        return (sample(n, self.add) for n in range(self.count))


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.count = 0


def numbers(folder: Path | sx.Dataset) -> list[int]:
    ds = folder if isinstance(folder, sx.Dataset) else sx.open(folder)
    return [int(n) for n in ds["n"]]


def check_clean(folder: Path) -> None:
    """Nothing but the cache is there, and it has no files that no version names."""
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert leftovers(folder) == []
    assert sx.verify(folder, progress=False) == []


# -- one run ----------------------------------------------------------------------------------------------------


def test_the_generator_runs_once(tmp_path: Path) -> None:
    first = sx.cache(Counted(), FIELDS, tmp_path / "c")
    again = sx.cache(Counted(), FIELDS, tmp_path / "c")
    assert calls.count == 1
    assert numbers(first) == numbers(again) == [0, 1, 2, 3, 4]
    assert again.features == sx.Features.of(FIELDS)
    assert again[3].x.tolist() == [3.0, 3.0, 3.0]
    check_clean(tmp_path / "c")


def test_metadata_say_what_made_it(tmp_path: Path) -> None:
    made = sx.cache(functools.partial(map, sample, [1]), FIELDS, tmp_path / "c", fingerprint="v7").metadata["cache"]
    assert made["generator"] == "map" and made["fingerprint"] == "v7"
    assert sx.open(tmp_path / "c").metadata["cache"] == made


def pairs() -> Iterator[tuple[str, dict[str, Any]]]:
    for n in range(3):
        yield f"key {n}", sample(n)


def list_of_samples() -> list[dict[str, Any]]:
    return [sample(n) for n in range(3)]


@pytest.mark.parametrize("generator", [pairs, list_of_samples, list_of_samples(), functools.partial(pairs)])
def test_generators_and_iterables(tmp_path: Path, generator: Callable[[], Iterable[Any]] | Iterable[Any]) -> None:
    """A function that returns any iterable, or an iterable itself; of pairs the key is dropped."""
    assert numbers(sx.cache(generator, FIELDS, tmp_path / "c")) == [0, 1, 2]


def test_a_generator_object_needs_a_fingerprint(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"but pairs uses .* pass a function .* fingerprint='v1'"):
        sx.cache(pairs(), FIELDS, tmp_path / "c")
    assert list(tmp_path.iterdir()) == []
    assert numbers(sx.cache(pairs(), FIELDS, tmp_path / "c", fingerprint="v1")) == [0, 1, 2]
    unused = pairs()
    assert numbers(sx.cache(unused, FIELDS, tmp_path / "c", fingerprint="v1")) == [0, 1, 2]
    assert next(unused)[0] == "key 0"


@pytest.mark.parametrize("iterator", [iter([sample(1)]), map(sample, [1]), iter({1: sample(1)}.values())])
def test_an_iterator_needs_a_fingerprint(tmp_path: Path, iterator: Iterator[Any]) -> None:
    """A second call would find it at its end, changed, and replace the samples by none."""
    with pytest.raises(ArgumentError, match=r"got the iterator .* pass a function that makes it, .* fingerprint='v1'"):
        sx.cache(iterator, FIELDS, tmp_path / "c")
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        assert numbers(sx.cache(iterator, FIELDS, tmp_path / "c", fingerprint="v1")) == [1]


@pytest.mark.parametrize("as_function", [False, True])
@pytest.mark.parametrize("make", [iter, lambda samples: (one for one in samples), functools.partial(map, dict)])
def test_what_was_begun_is_not_used_again(tmp_path: Path, make: Callable[[Any], Any], as_function: bool) -> None:
    """The samples after the one that failed would look like all of them."""
    begun = make([sample(0), {"n": "wrong"}, sample(2)])
    given = (lambda: begun) if as_function else begun
    with pytest.raises(SchemaError):
        sx.cache(given, FIELDS, tmp_path / "c", fingerprint="v1")
    for name in ("c", "other"):
        with pytest.raises(ArgumentError, match=r"expected a generator that has not begun, .* make a new one"):
            sx.cache(given, FIELDS, tmp_path / name, fingerprint="v1")
    assert list(tmp_path.iterdir()) == []
    assert numbers(sx.cache(make([sample(5)]), FIELDS, tmp_path / "c", fingerprint="v1")) == [5]


@pytest.mark.parametrize("workers", [1, 2])
def test_none_is_no_sample(tmp_path: Path, workers: int) -> None:
    fields = {"n": sx.Optional(sx.Value("int64")), "image": sx.Optional(sx.Image())}
    with pytest.raises(SchemaError, match=r"got None.* - at sample 1"):
        sx.cache([{"n": 1}, None], fields, tmp_path / "c", workers=workers)
    assert list(tmp_path.iterdir()) == []


def test_a_dataset_is_an_iterable(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [sample(n) for n in range(4)], FIELDS)
    assert numbers(sx.cache(ds, FIELDS, tmp_path / "c")) == [0, 1, 2, 3]


def test_images_of_a_dataset_stay_as_they_are(tmp_path: Path) -> None:
    jpeg = encode_image(np.arange(192, dtype=np.uint8).reshape(8, 8, 3), "jpeg")
    ds = sx.write(tmp_path / "d", [{"image": jpeg}], {"image": sx.Image()})
    assert ds[0].image.shape == (8, 8, 3)
    for generator in (ds, lambda: ds):
        cached = sx.cache(generator, {"image": sx.Image()}, tmp_path / "c")
        assert cached.stored[0].image == jpeg and np.array_equal(cached[0].image, ds[0].image)


@dataclass
class Point:
    n: int
    s: str = "none"


def test_samples_of_a_class(tmp_path: Path) -> None:
    ds = sx.cache(lambda: [Point(1), Point(2, "b")], Point, tmp_path / "c")
    assert [(one.n, one.s) for one in ds] == [(1, "none"), (2, "b")]


def test_no_samples(tmp_path: Path) -> None:
    ds = sx.cache(list, FIELDS, tmp_path / "c")
    assert len(ds) == 0 and ds.features == sx.Features.of(FIELDS)
    assert len(sx.cache(list, FIELDS, tmp_path / "c")) == 0
    assert len(history(tmp_path / "c")) == 1


def test_plain_pyarrow_reads_a_cache(tmp_path: Path) -> None:
    sx.cache(Counted(1000), FIELDS, tmp_path / "c", shard_size=10_000)
    shards = list((tmp_path / "c" / "data").iterdir())
    assert len(shards) > 2
    found = pa.concat_tables([pa.ipc.open_file(path).read_all() for path in shards]).sort_by("n")
    assert found["n"].to_pylist() == list(range(1000))
    assert found["x"][7].as_py() == [7.0, 7.0, 7.0] and found["label"][7].as_py() == 1


# -- changes ----------------------------------------------------------------------------------------------------


def test_another_argument_makes_the_samples_again(tmp_path: Path) -> None:
    old = sx.cache(Counted(), FIELDS, tmp_path / "c")
    assert numbers(sx.cache(Counted(add=10), FIELDS, tmp_path / "c")) == [10, 11, 12, 13, 14]
    assert numbers(old) == [0, 1, 2, 3, 4]
    check_clean(tmp_path / "c")


def test_other_code_makes_the_samples_again(tmp_path: Path) -> None:
    assert numbers(sx.cache(lambda: [sample(1)], FIELDS, tmp_path / "c")) == [1]
    assert numbers(sx.cache(lambda: [sample(1)], FIELDS, tmp_path / "c")) == [1]
    assert len(history(tmp_path / "c")) == 1
    assert numbers(sx.cache(lambda: [sample(2)], FIELDS, tmp_path / "c")) == [2]


def test_a_given_fingerprint_stands_for_the_generator(tmp_path: Path) -> None:
    sx.cache(Counted(), FIELDS, tmp_path / "c", fingerprint="v1")
    assert numbers(sx.cache(Counted(add=10), FIELDS, tmp_path / "c", fingerprint="v1"))[0] == 0
    assert numbers(sx.cache(Counted(add=10), FIELDS, tmp_path / "c", fingerprint="v2"))[0] == 10
    assert calls.count == 2


CHANGED = {**FIELDS, "label": sx.ClassLabel(("cat", "cow"))}


def test_another_name_of_a_class_makes_the_samples_again(tmp_path: Path) -> None:
    sx.cache(Counted(), FIELDS, tmp_path / "c", fingerprint="v1")
    ds = sx.cache(Counted(), CHANGED, tmp_path / "c", fingerprint="v1")
    assert calls.count == 2 and ds.features == sx.Features.of(CHANGED)


@pytest.mark.parametrize(
    ("features", "fingerprint", "words"),
    [
        (FIELDS, "v2", r"expected samples of Counted with the fingerprint v2, got those of Counted with v1; on_change"),
        ({"n": int}, "v1", r"expected the fields n int64, got n int64, x float32\[3\], label class of 2"),
        (CHANGED, "v1", r"expected the field label to be .*cow.*, got .*dog"),
    ],
)
def test_a_change_is_an_error_if_asked(tmp_path: Path, features: Any, fingerprint: str, words: str) -> None:
    sx.cache(Counted(), FIELDS, tmp_path / "c", fingerprint="v1", on_change="error")
    with pytest.raises(CacheChangedError, match=words):
        sx.cache(Counted(), features, tmp_path / "c", fingerprint=fingerprint, on_change="error")
    assert calls.count == 1
    check_clean(tmp_path / "c")


@pytest.mark.parametrize("how", ["data", "size", "manifest"])
def test_a_damaged_cache_is_made_again(tmp_path: Path, how: str) -> None:
    sx.cache(Counted(add=1), FIELDS, tmp_path / "c")
    (old,) = (tmp_path / "c" / "data").iterdir()
    calls.count = 0
    sx.cache(Counted(), FIELDS, tmp_path / "c")
    (data,) = {*(tmp_path / "c" / "data").iterdir()} - {old}
    if how == "data":
        data.unlink()
    elif how == "size":
        data.write_bytes(data.read_bytes()[:-1])
    else:
        (tmp_path / "c" / "_shardex" / "00000002.json").write_text("{}")
    with pytest.raises(CacheChangedError, match="expected a valid cache, got damaged files"):
        sx.cache(Counted(), FIELDS, tmp_path / "c", on_change="error")
    assert numbers(sx.cache(Counted(), FIELDS, tmp_path / "c")) == [0, 1, 2, 3, 4]
    assert len(sx.cache(Counted(), FIELDS, tmp_path / "c", on_change="error")) == 5


def test_readers_keep_the_old_samples(tmp_path: Path) -> None:
    """Also if they have read none of them yet; two versions stay by default, one with ``keep=1``."""
    old = sx.cache(Counted(), FIELDS, tmp_path / "c")
    new = sx.cache(Counted(add=10), FIELDS, tmp_path / "c")
    assert numbers(old) == [0, 1, 2, 3, 4]
    unread = sx.open(tmp_path / "c")
    sx.cache(Counted(add=20), FIELDS, tmp_path / "c", keep=1)
    assert len(history(tmp_path / "c")) == 1 and len(os.listdir(tmp_path / "c" / "data")) == 1
    assert numbers(old) == [0, 1, 2, 3, 4]  # its files are mapped
    with pytest.raises(VersionExpired):
        numbers(unread)
    with pytest.raises(VersionExpired):
        numbers(new)
    check_clean(tmp_path / "c")


def test_a_field_that_was_added_stays(tmp_path: Path) -> None:
    sx.cache(Counted(), FIELDS, tmp_path / "c")
    with sx.edit(tmp_path / "c", progress=False) as tx:
        tx.add_field("twice", int, [2 * n for n in range(5)])
    assert sx.cache(Counted(), FIELDS, tmp_path / "c")[3].twice == 6


def edit(folder: Path, how: str) -> None:
    if how == "append":
        sx.write(folder, [sample(9)], FIELDS, mode="append")
        return
    with sx.edit(folder, progress=False) as tx:
        if how == "delete":
            tx.delete([0, 1])
        elif how == "update":
            tx.update(0, n=7)
        else:
            tx.drop_field("n")


@pytest.mark.parametrize("how", ["append", "delete", "update", "drop"])
def test_edited_samples_are_a_change(tmp_path: Path, how: str) -> None:
    """They are not those of the generator any more; also after they are stored anew."""
    sx.cache(Counted(), FIELDS, tmp_path / "c")
    edit(tmp_path / "c", how)
    sx.compact(tmp_path / "c")
    with pytest.raises(CacheChangedError, match="expected the samples of Counted as it made them, got edited ones"):
        sx.cache(Counted(), FIELDS, tmp_path / "c", on_change="error")
    assert calls.count == 1
    assert numbers(sx.cache(Counted(), FIELDS, tmp_path / "c")) == [0, 1, 2, 3, 4]
    assert len(sx.cache(Counted(), FIELDS, tmp_path / "c", on_change="error")) == 5
    assert calls.count == 2


# -- errors -----------------------------------------------------------------------------------------------------


class BrokenError(Exception):
    """An error of the generator."""


def broken(after: int) -> Iterator[dict[str, Any]]:
    yield from map(sample, range(after))
    raise BrokenError("disk of the source is gone")


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("there", [False, True])
def test_an_error_of_the_generator_passes(tmp_path: Path, there: bool, workers: int | None) -> None:
    if there:
        sx.cache(Counted(), FIELDS, tmp_path / "c")
    with pytest.raises(BrokenError, match="disk of the source is gone") as caught:
        sx.cache(functools.partial(broken, 7), FIELDS, tmp_path / "c", workers=workers)
    (note,) = caught.value.__notes__
    assert note == f"raised by broken at sample 7; {tmp_path / 'c'} is as it was before"
    if there:
        assert numbers(tmp_path / "c") == [0, 1, 2, 3, 4]
        check_clean(tmp_path / "c")
    else:
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", [False, True])
def test_an_interrupt_leaves_nothing(tmp_path: Path, there: bool) -> None:
    def interrupted() -> Iterator[Any]:
        yield from sized([3_000_000, 3_000_000])
        raise KeyboardInterrupt

    if there:
        sx.cache(functools.partial(sized, [1]), {"n": int, "b": bytes}, tmp_path / "c")
    with pytest.raises(KeyboardInterrupt):
        sx.cache(interrupted, {"n": int, "b": bytes}, tmp_path / "c", shard_size=1_000_000)
    if there:
        check_clean(tmp_path / "c")
    else:
        assert list(tmp_path.iterdir()) == []


def test_a_sample_that_does_not_fit(tmp_path: Path) -> None:
    wrong = [sample(0), {**sample(1), "x": np.zeros(4, np.float32)}]
    with pytest.raises(SchemaError, match=r"expected float32\[3\], got float32\[4\] - at sample 1, field x"):
        sx.cache(wrong, FIELDS, tmp_path / "c")
    with pytest.raises(SchemaError, match=r"expected a sample as a mapping of fields.* - at sample 1"):
        sx.cache(lambda: [sample(0), 5], FIELDS, tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_the_generator_is_closed_after_an_error(tmp_path: Path) -> None:
    closed = []

    def samples() -> Iterator[Any]:
        try:
            yield 1
        finally:
            closed.append(True)

    with pytest.raises(SchemaError):
        sx.cache(samples(), FIELDS, tmp_path / "c", fingerprint="")
    assert closed == [True]


def test_files_of_others_are_never_replaced(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [sample(0)], FIELDS)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name, words in (("d", "has not made"), ("other", "got others"), ("file", "got a file")):
        with pytest.raises(AlreadyExistsError, match=words):
            sx.cache(Counted(), FIELDS, tmp_path / name)
    assert calls.count == 0 and (tmp_path / "other" / "notes.txt").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["d", "file", "other"]
    (tmp_path / "empty").mkdir()
    assert len(sx.cache(Counted(), FIELDS, tmp_path / "empty")) == 5


def test_files_beside_the_folder_are_never_replaced(tmp_path: Path) -> None:
    """A program may hold a lock of its own while it makes a cache."""
    with (tmp_path / ".c.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write("notes")
        held.flush()
        for add in (0, 0, 1):
            sx.cache(Counted(add=add), FIELDS, tmp_path / "c")
    assert (tmp_path / ".c.lock").read_text() == "notes"
    (mine := tmp_path / ".c.shardex-cache.lock").write_text("notes")
    with pytest.raises(AlreadyExistsError, match="expected the lock of a cache, or no file"):
        sx.cache(Counted(add=1), FIELDS, tmp_path / "c")
    assert mine.read_text() == "notes"


def damage(path: Path) -> None:
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)


def as_format(path: Path, number: int) -> None:
    """Write a manifest as a newer shardex might: with a right checksum."""
    manifest = json.dumps(json.loads(path.read_bytes())["manifest"] | {"shardex": number}, separators=(",", ":"))
    path.chmod(0o644)
    path.write_text(f'{{"xxh3":"{xxhash.xxh3_64_hexdigest(manifest.encode())}","manifest":{manifest}}}')


@pytest.mark.parametrize(
    ("made_by_cache", "how", "words"),
    [
        (False, "newest", "`cache` has not made"),
        (False, "all", r"got damaged files that may be of another dataset .* recover\(\)"),
        (True, "all", "got damaged files .* remove the folder if it is a cache"),
        (False, "newer", "of this version of shardex .* format 2, got 99"),
        (True, "newer", "of this version of shardex .* format 2, got 99"),
    ],
)
def test_a_dataset_that_cannot_be_read_is_never_replaced(
    tmp_path: Path, made_by_cache: bool, how: str, words: str
) -> None:
    """It may be all that the user has; only a readable version which says that it is a cache allows it."""
    if made_by_cache:
        sx.cache(Counted(add=1), FIELDS, tmp_path / "d")
        sx.cache(Counted(), FIELDS, tmp_path / "d")
    else:
        sx.write(tmp_path / "d", [sample(0)], FIELDS)
        sx.write(tmp_path / "d", [sample(1)], FIELDS, mode="append")
    first, newest = sorted((tmp_path / "d" / "_shardex").glob("*.json"))
    if how == "newer":
        as_format(newest, 99)
    else:
        damage(newest)
        if how == "all":
            damage(first)
    before = {path: path.read_bytes() for path in (tmp_path / "d").rglob("*") if path.is_file()}
    calls.count = 0
    for _ in range(2):
        with pytest.raises(AlreadyExistsError, match=words):
            sx.cache(Counted(add=2), FIELDS, tmp_path / "d", keep=1)
    assert {path: path.read_bytes() for path in (tmp_path / "d").rglob("*") if path.is_file()} == before
    assert calls.count == 0 and os.listdir(tmp_path) == ["d"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on_change": "ignore"}, "expected on_change to be one of 'rebuild', 'error', got 'ignore'"),
        ({"workers": 0}, "expected workers to be a number from 1, got 0"),
        ({"shard_size": "1 GB"}, "expected shard_size to be a number from 1, got '1 GB'"),
        ({"keep": 0}, "expected keep to be a number from 1, got 0"),
        ({"fingerprint": 3}, "expected fingerprint to be a text, got 3"),
    ],
)
def test_wrong_options(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        sx.cache(Counted(), FIELDS, tmp_path / "c", **options)


def test_wrong_generators_and_places(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"expected a function that returns an iterator of samples, .* got 3"):
        sx.cache(3, FIELDS, tmp_path / "c")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"expected .*lambda.* to return an iterator of samples, got None"):
        sx.cache(lambda: None, FIELDS, tmp_path / "c")  # type: ignore[arg-type, return-value]
    with pytest.raises(ArgumentError, match=r"expected a local folder for a cache.* write a finished cache to a URL"):
        sx.cache(Counted(), FIELDS, "s3://bucket/cache")
    assert list(tmp_path.iterdir()) == []


# -- shards, memory, progress -----------------------------------------------------------------------------------


def sized(sizes: list[int]) -> Iterator[dict[str, Any]]:
    for n, size in enumerate(sizes):
        yield {"n": n, "b": bytes([n % 256]) * size}


@pytest.mark.parametrize("size", [10, 3_000, 70_000])
def test_shards_have_at_most_this_size(tmp_path: Path, size: int) -> None:
    """A shard ends at the last sample that fits, not at the end of a batch of 2 MiB."""
    most, chance = 250_000, np.random.default_rng(0)
    sizes = chance.integers(size // 2, size, 3 * most // size if size > 10 else 30_000).tolist()
    ds = sx.cache(functools.partial(sized, sizes), {"n": int, "b": bytes}, tmp_path / "c", shard_size=most)
    found = sorted(path.stat().st_size for path in (tmp_path / "c" / "data").iterdir())
    assert len(found) >= 3 and found[-1] <= most
    assert found[1] > most - size - 3_000
    assert [len(b) for b in ds["b"]] == sizes


def test_a_sample_larger_than_a_shard(tmp_path: Path) -> None:
    sizes = [10, 5_000, 10, 10, 5_000_000, 10]
    ds = sx.cache(functools.partial(sized, sizes), {"n": int, "b": bytes}, tmp_path / "c", shard_size=4_000)
    assert [len(b) for b in ds["b"]] == sizes
    assert len(os.listdir(tmp_path / "c" / "data")) == 5


def test_progress_counts_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sx.cache([sample(n) for n in range(4)], FIELDS, tmp_path / "c", progress=True)
    shown = capsys.readouterr().err
    assert "cache c: 100%" in shown and "4/4" in shown
    sx.cache([sample(n) for n in range(5)], FIELDS, tmp_path / "c", progress=False)
    assert capsys.readouterr().err == ""


def test_a_generator_that_uses_its_own_cache(tmp_path: Path) -> None:
    """An error, as it would wait for itself."""
    with pytest.raises(ArgumentError, match="expected a generator that does not use the cache which it makes"):
        sx.cache(lambda: sx.cache(Counted(), FIELDS, tmp_path / "c"), FIELDS, tmp_path / "c", fingerprint="")
    inner = functools.partial(sx.cache, Counted(), FIELDS, tmp_path / "inner")
    assert len(sx.cache(inner, FIELDS, tmp_path / "c", fingerprint="")) == 5


def test_a_copy_is_no_cache(tmp_path: Path) -> None:
    """It may have other samples."""
    ds = sx.cache(Counted(), FIELDS, tmp_path / "c")
    assert sx.write(tmp_path / "copy", ds.where("n > 2"), metadata={"of": "c"}).metadata == {"of": "c"}
    assert sx.write(tmp_path / "part", ds[:2]).metadata == {}
    with pytest.raises(AlreadyExistsError, match="has not made"):
        sx.cache(Counted(), FIELDS, tmp_path / "part")


# -- several builders -------------------------------------------------------------------------------------------


def test_others_wait_and_then_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begun, go_on, found = threading.Event(), threading.Event(), dict[int, list[int]]()

    made: list[int] = []

    def slow() -> Iterator[dict[str, Any]]:
        made.append(1)
        yield sample(0)
        begun.set()
        assert go_on.wait(60)
        yield sample(1)

    def run(number: int) -> None:
        found[number] = numbers(sx.cache(slow, FIELDS, tmp_path / "c", fingerprint="v1", progress=True))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    threads[0].start()
    assert begun.wait(60)
    for thread in threads[1:]:
        thread.start()
    said = ""

    def both_wait() -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return said.count(f"waiting for process {os.getpid()} on ") == 2

    assert becomes_true(both_wait)
    assert not (tmp_path / "c" / "_shardex").exists()
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert found == {0: [0, 1], 1: [0, 1], 2: [0, 1]} and made == [1]
    check_clean(tmp_path / "c")


def test_a_valid_cache_is_read_while_another_is_built(tmp_path: Path) -> None:
    sx.cache(Counted(), FIELDS, tmp_path / "c")

    def other() -> Iterator[dict[str, Any]]:
        assert numbers(sx.cache(Counted(), FIELDS, tmp_path / "c")) == [0, 1, 2, 3, 4]
        yield sample(9)

    assert numbers(sx.cache(other, FIELDS, tmp_path / "c", fingerprint="other")) == [9]
    check_clean(tmp_path / "c")


# -- what a killed process leaves ---------------------------------------------------------------------------------


def leave(folder: Path, host: str) -> list[Path]:
    """Leave the files of a build that was killed on a machine: a lock, a temporary file, a data file."""
    lock = folder.parent / f".{folder.name}.shardex-cache.lock"
    lock.write_text(f"12345@{host}")
    data = folder / "data" / f"{'0' * 32}-{'1' * 16}.arrow"
    temporary = folder / f".{'a' * 16}.tmp"
    data.parent.mkdir(parents=True, exist_ok=True)
    for path in (data, temporary):
        path.write_bytes(b"half")
    return [lock, data, temporary]


@pytest.mark.parametrize("then", ["none", "same", "other"])
def test_leftovers_are_removed_by_the_next_start(tmp_path: Path, then: str) -> None:
    if then != "none":
        sx.cache(Counted(), FIELDS, tmp_path / "c")
    left = leave(tmp_path / "c", os.uname().nodename)
    assert len(sx.cache(Counted(add=then == "other"), FIELDS, tmp_path / "c")) == 5
    assert not any(path.exists() for path in left)
    check_clean(tmp_path / "c")


def test_files_of_another_machine_stay_for_an_hour(tmp_path: Path) -> None:
    """It may be building still: some file systems do not share locks."""
    sx.cache(Counted(), FIELDS, tmp_path / "c")
    left = leave(tmp_path / "c", "another-machine")
    for add in (0, 1, 1, 2):
        assert len(sx.cache(Counted(add=add), FIELDS, tmp_path / "c")) == 5
        assert all(path.exists() for path in left[1:])
    for path in (*left, *(tmp_path / "c" / "data").iterdir()):
        os.utime(path, (0, 0))
    assert len(sx.cache(Counted(add=2), FIELDS, tmp_path / "c")) == 5
    assert not any(path.exists() for path in left)
    check_clean(tmp_path / "c")
