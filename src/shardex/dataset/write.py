"""`write`: stores samples of any kind in one call, through functions, in several processes or on a cluster."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from shardex import dataset as room
from shardex.dataset.create import create, in_classes_of, samples_of
from shardex.dataset.dataset import Dataset
from shardex.dataset.huggingface import HubStream, is_stream
from shardex.dataset.memory_rows import ListRows
from shardex.dataset.open import open as open_dataset
from shardex.dataset.write_job import Began, part_rows, warn_of_left_out, write_in_parts
from shardex.dataset.write_steps import WriteSteps, source_of_function
from shardex.errors import ArgumentError, SchemaError
from shardex.features import Features, hf_metadata
from shardex.files import Stage
from shardex.formats import check_options, format_named, target_format
from shardex.layers import changes, sample_of_view
from shardex.progress import Bar
from shardex.samples import DictSample, Lens, is_sample_class
from shardex.sources import parent_of, path_text, place_of
from shardex.workers import ExecutorLike

if TYPE_CHECKING:
    from shardex.dataset.open import Data
    from shardex.dataset.references import Registration


def write(
    path: str | os.PathLike[str],
    samples: Iterable[Any] | Data,
    schema: Any = None,
    *,
    transform: Callable[[Any], Any] | None = None,
    filter: Callable[[Any], Any] | None = None,
    batched: bool = False,
    batch_size: int = 256,
    workers: int | None = None,
    executor: ExecutorLike = None,
    on_error: str = "raise",
    format: str | None = None,
    mode: str = "create",
    progress: bool | None = None,
    through: Lens[Any, Any] | None = None,
    onto: Dataset[Any] | None = None,
    register: str | None = None,
    **options: Any,
) -> Dataset:
    """Write all samples of a list, a generator, a dataset, or anything else that `open` takes, and open the result.

    `transform` is called with each sample and returns the sample to write, or a list of samples: none, one or many.
    `filter` is called before it and returns whether to keep a sample. With `batched` both get batches of `batch_size`
    samples (columns by name): `filter` returns a mask, `transform` columns of any length. Without `schema` the fields
    are found in the first results, and their types become wider if a later result needs it.

    `workers` processes work at the same time, or an `executor`: "threads", "ray", the address of a Ray cluster, or an
    executor of `concurrent.futures`. The files have the same content for every number of workers. A run that is killed
    or raises an error keeps its finished parts next to the target; the same call continues it. With
    ``on_error="skip"`` samples that raise an error are left out, and the attribute `left_out` of the result lists them.

    A name such as ``a.parquet`` is one file of this format (see `create`); what functions return is then kept in a
    native dataset beside it until all is there. The `metadata` of a dataset is written too if there is no `transform`
    and the format can store it. The result has untyped samples, also if `schema` is a class: ``open(path, Class)``.

    With a lens in `through`, `samples` are views: each is put back into the sample of `onto` at the same position, and
    the results are written. Without `onto` the lens must be able to make a sample from a view alone.

    With ``register="@name"`` the result is the next version of this name in a catalog (see `Catalog`). Its parent is
    the dataset of a catalog that `samples` is a view of.

    >>> import tempfile; folder = tempfile.mkdtemp()
    >>> ds = write(folder + "/a", [{"x": 1}, {"x": 2}]); ds[1]
    DictSample(x=2)
    >>> write(folder + "/b", ds, transform=lambda sample: {"double": 2 * sample.x}, workers=1)[1]
    DictSample(double=4)
    """
    path = path_text(path)
    format, is_file = target_format(path, format)
    began = Began.of(path, format) if mode == "append" and not is_file else None
    module, steps = format_named(format), WriteSteps(transform, filter, batched, batch_size, on_error)
    steps.check()
    check_options(module.create, format, options, _parameters())
    source = samples_of(samples)
    registration = None if register is None else room.references.Registration(register, source)
    if transform is None and through is None and mode != "append":
        options = {**_stored_metadata(source, format), **options}
    if schema is None and not steps.any and through is None and isinstance(source, Dataset):
        source, transform = source_of_function(source)
        steps = replace(steps, transform=transform)
        samples = samples if transform is None else source
    if not steps.any and isinstance(source, Dataset):
        source = source.stored  # media are copied as they are
        source = source if schema is None or through is not None else in_classes_of(source, Features.of(schema))
    in_parts = steps.any or workers is not None or executor is not None or on_error != "raise"
    if in_parts and (through is not None or onto is not None):
        raise ArgumentError("expected through= and onto= without functions and workers, got both")
    if in_parts and is_file:
        with _parts_of_file(path, mode) as folder:
            result = write(
                folder,
                samples,
                schema,
                transform=transform,
                filter=filter,
                batched=batched,
                batch_size=batch_size,
                workers=workers,
                executor=executor,
                on_error=on_error,
                progress=progress,
            )
            made = write(path, result, format=format, mode=mode, progress=progress, **options)
        made.left_out = result.left_out
        return _registered(made, registration)
    if in_parts or (through is None and not is_file and _is_large(path, source, steps, format, mode, options)):
        whole = source if isinstance(source, Dataset) else _opened(source)
        whole = whole if steps.any else whole.stored
        result = write_in_parts(
            path,
            whole,
            schema,
            steps,
            format=format,
            mode=mode,
            workers=workers,
            executor=executor,
            progress=progress,
            options=options,
            began=began,
        )
        warn_of_left_out(path, result.left_out, len(whole))
        return _registered(result, registration)
    if schema is None and is_stream(source) and source.features is not None:
        source = HubStream(source)
        schema = None if is_file else module.existing_schema(place_of(path), mode)
    while True:
        try:
            written = _write_stream(path, source, schema, format, mode, progress, through, onto, options)
            return _registered(written, registration)
        except SchemaError:
            if schema is not None or not isinstance(source, HubStream) or not source.widen():
                raise


def _registered(written: Dataset, registration: Registration | None) -> Dataset:
    """Return a dataset that was written; put it into a catalog first if that was asked for."""
    if registration is not None:
        registration.put(written)
    return written


@contextmanager
def _parts_of_file(path: str, mode: str) -> Iterator[str]:
    """Give the path of a native dataset beside a file, which is written from it in the end; the dataset is removed."""
    Stage(path, mode, one_file=True)  # raises if the file may not be written
    parent, name = parent_of(path)
    place_of(parent).remove_folder(f".{name}.parts")  # of a run that was killed when it wrote the file
    yield f"{parent.rstrip('/')}/.{name}.parts"
    place_of(parent).remove_folder(f".{name}.parts")


@cache
def _parameters() -> Mapping[str, Any]:
    return inspect.signature(write).parameters


def _stored_metadata(source: Any, format: str) -> dict[str, Any]:
    """Return the option with the metadata of a dataset that is copied, if there is any and the format can store it."""
    if not isinstance(source, Dataset) or not (metadata := hf_metadata.copied_metadata(source.metadata)):
        return {}
    takes = "metadata" in inspect.signature(format_named(format).create).parameters
    return {"metadata": metadata} if takes else {}


def _opened(samples: Any) -> Dataset[Any]:
    """Return samples as a dataset."""
    none = isinstance(samples, list | tuple) and not samples  # `open` takes an empty list for one of files
    return Dataset(ListRows([])) if none else open_dataset(samples)


def _is_large(path: str, source: Any, steps: WriteSteps, format: str, mode: str, options: Mapping[str, Any]) -> bool:
    """Return True if a dataset has several parts, which are written in the same way with and without workers."""
    return (
        isinstance(source, Dataset)
        and not path.startswith("memory://")
        and len(source) > part_rows(source, steps, options)
        and not format_named(format).join.part_options(path, mode, options).get("generate_keys")
    )


def _counted(samples: Iterable[Any], bar: Bar) -> Iterator[Any]:
    """Yield samples and show how many there were."""
    for sample in samples:
        yield sample
        bar.update()


def _write_stream(
    path: str,
    source: Any,
    schema: Any,
    format: str,
    mode: str,
    progress: bool | None,
    through: Lens[Any, Any] | None,
    onto: Dataset[Any] | None,
    options: Mapping[str, Any],
) -> Dataset:
    """Write samples one after another with one writer."""
    if schema is None and isinstance(source, HubStream):
        schema = source.features
    total = len(source) if isinstance(source, Sized) else None
    if schema is None and isinstance(given := source if through is None else onto, Dataset):
        schema = given.features
    if through is not None:
        schema = schema or (Features.of(through.source) if is_sample_class(through.source) else None)
        source = _put_views(source, through, onto)
    elif onto is not None:
        raise ArgumentError("expected through=, a lens that puts views into samples, together with onto=, got none")
    quiet = None if progress is None else not progress
    with (
        Bar(desc="write", unit=" samples", total=total, disable=quiet) as bar,
        create(path, schema, format=format, mode=mode, **options) as out,
    ):
        if isinstance(source, Dataset) and source.sample_type is DictSample:
            for columns in source.chunks():
                out.extend(columns)
                bar.update(len(columns))
        else:
            out.extend_by(iter(source) if bar.disable else _counted(source, bar), source)
    return open_dataset(out.path, format=format, **out.open_options)


def _put_views(views: Iterable[Any], lens: Lens[Any, Any], onto: Dataset[Any] | None) -> Iterator[Mapping[str, Any]]:
    """Yield each sample of a dataset with its view put back; without a dataset, samples made from views alone."""
    if onto is None:
        for view in views:
            yield sample_of_view(view, lens)
        return
    stored = onto.stored
    sources = (sample for some in onto.chunks() for sample in some.to_samples())
    try:
        for number, (view, source) in enumerate(zip(views, sources, strict=True)):
            whole = source if stored is onto else stored.sample(number)  # media that do not change keep their bytes
            yield {**whole, **changes(source, view, lens)}
    except ValueError as error:
        if not str(error).startswith("zip()"):
            raise
        raise ArgumentError(f"expected as many views as samples, got another number: {error}") from None
