"""Writes a dataset part by part: the job behind `write` for sources that are read by position.

A part is a range of samples. It is read, passed through the functions of the caller (`write_steps`), and written by the
usual writer of the format as a small dataset in the folder of the job (`jobs.JobFolder`). When all parts are finished
they are published together (`formats.Format.join`). Parts do not depend on the number of workers and are written in the
same way by each of them, so the result is always the same. The folder stays after an error or a kill: the next run of
the same job continues.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from shardex.columns import BatchBuilder
from shardex.dataset.create import Writer, names_lost, samples_in, warn_without_values
from shardex.dataset.dataset import Dataset
from shardex.dataset.open import open as open_dataset
from shardex.dataset.views import stored_samples
from shardex.dataset.write_steps import Results, WriteSteps, features_of_results
from shardex.errors import AlreadyExistsError, ArgumentError, FormatError, NotFoundError, SchemaError, ShardexError
from shardex.features import Features, Inferred, arrow_schema
from shardex.files import MODES
from shardex.formats import Format, check_options, format_named
from shardex.jobs import (
    FinishedPart,
    JobFolder,
    LeftOut,
    Part,
    continue_parts,
    cut_rows,
    job_names,
    record_path,
    rows_per_part,
)
from shardex.kernel import Columns, byte_size
from shardex.layers import below_functions
from shardex.order import Order
from shardex.progress import Bar
from shardex.rows import AbstractRows
from shardex.samples import fields_of, is_sample_class, record_of
from shardex.sources import Place, parent_of, place_of, redact_url
from shardex.workers import ExecutorLike, function_fingerprint

_VERSION = 1
"""Part of the fingerprint of a job: a higher number if the same job would write other bytes."""
_MEASURED = 16
"""Samples from which the size of all is estimated."""
_FEW = 3
_SAMPLE = re.compile(r" - at sample (\d+)(, )?")
_FIRST = "first.json"
_LOOK = "look whether the dataset has the samples, and run it again if they are missing"
_SHARD_BYTES, _SMALL = 64 << 20, 16
"""Parts are small if they have less than this share of the size that they have without functions."""
_WHOLE = "done/whole.json"
"""Record of the part that has the samples of all."""


@dataclass(frozen=True)
class Began:
    """State of a target when a call that adds samples begins: it shows later what other runs did meanwhile."""

    state: Any
    """State of the target (`Join.state`)."""
    jobs: frozenset[str]
    """Names of the folders of jobs with this target."""

    @classmethod
    def of(cls, path: str, format: str) -> Began | None:
        """Look at a target; None for one that cannot be written in parts."""
        if path.startswith("memory://"):
            return None
        jobs = job_names(path)  # before the format is imported: a job may end meanwhile
        return cls(format_named(format).join.state(path), jobs)


# -- the job ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class WriteJob:
    """Writes one part; a worker calls it."""

    source: Dataset[Any]
    steps: WriteSteps
    schema: Any
    format: str
    options: Mapping[str, Any]
    folder: JobFolder
    first_name: int = 0
    """Number of the first sample, for formats that name samples."""
    inferred: Inferred | None = None
    """The schema, if it was inferred: it becomes wider with the samples of the part."""

    def __repr__(self) -> str:
        return f"WriteJob(transform={self.steps.transform!r}, filter={self.steps.filter!r}, source={self.source!r})"

    def __call__(self, part: Part) -> FinishedPart:
        """Write the samples of a part to the folder of the job."""
        inner = self.folder.new_part(part.number)
        results = Results(self.source, self.steps, part.begin, part.end, Features.of(self.schema))
        try:
            schema = self.inferred or self.schema
            with Writer(self.folder.path(inner), schema, self.format, "create", self.options) as out:
                self._write(results, out, part)
        except BaseException:
            self.folder.discard(inner)
            raise
        files = place_of(self.folder.path(inner)).paths()
        fields = None if out.inferred is None else out.inferred.fields.to_json()
        return self.folder.finish(part.number, FinishedPart(inner, files, out.samples, results.left_out, fields))

    def _write(self, results: Results, out: Writer, part: Part) -> None:
        name_field = format_named(self.format).name_field

        def append(begin: int, end: int, one: Any) -> None:
            sample = fields_of(one)
            if name_field is not None and sample.get(name_field) is None:
                sample = {**sample, name_field: self._name(part, out.samples)}
            try:
                out.append(sample)
            except SchemaError as error:
                results.leave_out(begin, self._located(error, results, begin, end, part))

        def write(begin: int, end: int, result: Columns | Sequence[Any]) -> None:
            if isinstance(result, Columns) and name_field is None and self.steps.on_error == "raise":
                try:
                    return out.extend(result)
                except SchemaError as error:
                    raise self._located(error, results, begin, end, part) from None
            each = list(stored_samples(result)) if isinstance(result, Columns) else result
            if len(each) == end - begin and (self.steps.filter is None or len(each) == 1):
                for row, one in enumerate(each, begin):
                    append(row, row + 1, one)
            elif self.steps.on_error == "raise" or (refused := self._refused(each, name_field)) is None:
                for one in each:
                    append(begin, end, one)
            elif end - begin == 1:  # all results of the sample are left out
                results.leave_out(begin, self._located(refused, results, begin, end, part))
            else:  # it is not known which sample of the batch the value is from
                for alone in results.one_by_one(begin, end):
                    write(*alone)

        for begin, end, result in results:
            write(begin, end, result)

    def _refused(self, samples: Sequence[Any], name_field: str | None) -> SchemaError | None:
        """Return the error of the first of these samples that does not fit; None if all do."""
        complete = record_of(self.schema).complete if is_sample_class(self.schema) else None
        features = Features.of(self.schema)
        others = Features({name: one for name, one in features.items() if name != name_field})
        builder = BatchBuilder(others, arrow_schema(others))
        try:
            for one in samples:
                sample = fields_of(one) if complete is None else complete(fields_of(one))
                builder.append({name: value for name, value in sample.items() if name != name_field})
        except SchemaError as error:
            return error
        return None

    def _located(self, error: SchemaError, results: Results, begin: int, end: int, part: Part) -> SchemaError:
        """Return an error of a value that does not fit, with the samples and the function.

        The writer numbers samples in its part, which means nothing to the user: the number becomes that of the source,
        or is left out if functions are called or there is one sample only.
        """

        def number(found: re.Match[str]) -> str:
            if not self.steps.any and end - begin > 1:
                return f" - at sample {part.begin + int(found[1])}{found[2] or ''}"
            return " - at " if found[2] else ""

        function = self.steps.transform
        made = f"the result of {function!r} at " if function is not None else ""
        advice = "" if function is None else "; give a schema that fits all results with schema="
        text = str(error).partition("; the schema was inferred")[0]
        located = SchemaError(f"{_SAMPLE.sub(number, text)} - in {made}{results.place(begin, end)}{advice}")
        located.__suppress_context__ = True  # as `from None` does
        return located

    def _name(self, part: Part, number: int) -> str:
        """Return the name of a sample: its number, or the part and the number in it if functions are called."""
        if self.steps.any:
            return f"{self.first_name + part.begin:09d}_{number:06d}"
        return f"{self.first_name + part.begin + number:09d}"


def write_in_parts(
    path: str,
    source: Dataset[Any],
    schema: Any,
    steps: WriteSteps,
    *,
    format: str,
    mode: str,
    workers: int | None,
    executor: ExecutorLike,
    progress: bool | None,
    options: Mapping[str, Any],
    began: Began | None = None,
) -> Dataset[Any]:
    """Write a dataset in parts, or continue; return the result, which lists the samples that were left out."""
    steps.check()
    target, module = place_of(path), format_named(format)
    options = check_options(module.create, format, options)
    if mode not in MODES:
        raise ArgumentError(f"expected mode to be one of {', '.join(MODES)}, got {mode!r}")
    if mode == "append" and module.part_format is not None:
        raise ArgumentError(f'expected mode "create" or "overwrite" for the format {format}, got "append"')
    if options.get("generate_keys"):
        raise ArgumentError(
            "expected no generate_keys with workers, executor or a function: random keys would differ in each run; "
            "make a key from the sample with transform="
        )
    with suppress(ShardexError):  # samples of several types, which a function may unify
        _ = source.features  # found once here, so that the fingerprint of the source has them
    path = target.url  # absolute, as the current folder may be replaced; without a password
    rows, inferred = part_rows(source, steps, options), None
    # A part without errors is the same with on_error="skip", so that this may be added to continue after an error.
    inputs = (_VERSION, source, replace(steps, on_error="raise"), schema, format, mode, dict(options), rows)
    folder = JobFolder(path, function_fingerprint(inputs))
    if is_published(folder, path, module):
        finished = folder.finished()
    else:
        if began is not None and folder.name in began.jobs and not folder.exists():
            raise folder.outdated(f"another run of the same job has ended since this one began: {_LOOK}")
        if folder.commit is None:  # else the target may have files of a run that was killed
            module.join.check(path, mode)
        known = module.existing_schema(target, mode) if _appends(path, module, mode) else None
        schema = (known or features_of_results(source, steps)) if schema is None else schema
        inferred = schema if isinstance(schema, Inferred) and steps.on_error == "raise" else None
        schema = schema.features if isinstance(schema, Inferred) else schema
        _check_append(path, schema, format, mode, options)
        _check_fields(folder, Features.of(schema))
        parts = list(cut_rows(len(source), rows))
        with folder.opened(), _kept_after_errors(folder, inputs, module, target, mode, len(parts)) as finished:
            first = _first_name(folder, format, path, mode, began)
            part_format, part_options = (module.part_format, {}) if module.part_format else (format, options)
            part_options = dict(module.join.part_options(path, mode, part_options))
            part_options.pop("generate_keys", None)  # a sample without a key is an error
            job = WriteJob(source, steps, schema, part_format, part_options, folder, first, inferred)
            finished.update(_usable(folder, steps))
            if module.part_format is not None:  # an error in the options is raised now, not when all parts are finished
                Writer(folder.path(folder.new_part(0)), schema, format, "create", options).abort()
            for _ in continue_parts(
                job, parts, finished, workers=workers, executor=executor, desc="write", progress=progress
            ):
                pass
            inferred = _joined_features(finished) if inferred is not None else None
            again = _are_small(folder, finished, source, steps, options)
            publish_parts(
                folder, finished, path, inferred or schema, format, mode, options, progress, began, write_again=again
            )
            if inferred is not None:
                warn_without_values(path, inferred, sum(part.rows for part in finished.values()))
    written = schema if inferred is None else inferred.features
    names = {} if written is None else names_lost(format, Features.of(written))
    # this may make an index: if it is killed, the job is not over yet
    result = open_dataset(path, format=format, **names)
    result.left_out = [one for number in sorted(finished) for one in finished[number].left_out]
    if mode == "create":
        folder.discard_others()
    folder.remove()
    return result


def _appends(target: str, module: Format, mode: str) -> bool:
    """Return True if samples may be added to a dataset; at a URL only the native format can do that."""
    return mode == "append" and module.join.can_append(target)


def _check_append(path: str, schema: Any, format: str, mode: str, options: Mapping[str, Any]) -> None:
    """Raise the error of a writer that would append to a dataset with other fields: parts are written without it."""
    if _appends(path, format_named(format), mode):
        Writer(path, schema, format, mode, options).abort()


def _check_fields(folder: JobFolder, features: Features) -> None:
    """Raise an error if the job has begun with other fields: those of a target to append to may have changed."""
    try:
        begun = Features.from_json(folder.agreed("fields.json", features.to_json()))
    except NotFoundError as error:
        if place_of(parent_of(folder.url)[0]).root_kind() != "folder":  # the folder could not be created
            raise
        folder.place.remove_empty_folders()  # it was there when the write began
        raise folder.published_meanwhile() from error
    if begun != features:
        raise SchemaError(
            f"{redact_url(folder.url)}: expected the fields that this job has begun with ({begun}), got {features}; "
            "remove this folder to begin again"
        )


def _first_name(folder: JobFolder, format: str, path: str, mode: str, began: Began | None) -> int:
    """Return the number of the first sample, for a format that names samples.

    Samples that were added since the run began may be those of another run of the job, under names that are not known.
    """
    module = format_named(format)
    if module.name_field is None or mode != "append" or not exists(place_of(path), module):
        return 0
    number = len(open_dataset(path, format=format))
    if began is None or began.state == module.join.state(path):
        return folder.agreed(_FIRST, number)
    if (noted := folder.noted(_FIRST, int)) is None:
        raise folder.outdated(f"samples were added since this run began, maybe by another run of the same job: {_LOOK}")
    return noted


def _usable(folder: JobFolder, steps: WriteSteps) -> dict[int, FinishedPart]:
    """Return the finished parts; those that have left out samples are run again if errors are to be raised."""
    finished = folder.finished()
    if steps.on_error == "raise" and (again := [number for number, part in finished.items() if part.left_out]):
        folder.forget([_WHOLE, *map(record_path, again)])
        finished = {number: part for number, part in finished.items() if not part.left_out}
    return finished


def part_rows(source: Dataset[Any], steps: WriteSteps, options: Mapping[str, Any]) -> int:
    """Return how many samples a part of this job has."""
    below, fields = below_functions(source.rows, source.chosen)
    rows = rows_per_part(
        len(source),
        _sample_bytes(below.stored, fields, source.order),
        shard_rows=options.get("shard_rows"),
        shard_size=options.get("shard_size"),
        calls_function=steps.any or below is not source.rows,
    )
    whole_batches = steps.any and steps.batched and not {"shard_rows", "shard_size"} & options.keys()
    return -(-rows // steps.batch_size) * steps.batch_size if whole_batches else rows


def _sample_bytes(rows: AbstractRows, fields: Sequence[str] | None, order: Order) -> float:
    """Estimate the size of a sample from a few."""
    if not len(order):
        return 1.0
    some, sizes = order.rows(np.unique(np.linspace(0, len(order) - 1, _MEASURED).astype(np.int64))), []
    try:
        sizes.append(byte_size(rows.read(some, fields)) / len(some))
    except (FormatError, SchemaError):  # samples with errors, which may be left out
        for row in some:
            with suppress(FormatError, SchemaError):
                sizes.append(byte_size(rows.read(np.array([row]), fields)))
    return sum(sizes) / max(1, len(sizes))


def exists(place: Place, module: Format) -> bool:
    """Return True if there is a dataset at a place."""
    if module.is_dataset is not None:
        return module.is_dataset(place)
    return place.root_kind() == "folder" and bool(place.paths())


def is_published(folder: JobFolder, path: str, module: Format) -> bool:
    """Return True if a run of a job has published its parts and was killed before it had removed the folder."""
    if folder.is_over:
        return exists(place_of(path), module)
    return folder.commit is not None and module.join.was_joined(
        folder, _published_parts(folder, folder.finished()), path
    )


def publish_parts(
    folder: JobFolder,
    finished: Mapping[int, FinishedPart],
    path: str,
    schema: Any,
    format: str,
    mode: str,
    options: Mapping[str, Any],
    progress: bool | None = None,
    began: Began | None = None,
    *,
    write_again: bool = False,
) -> None:
    """Publish all parts of a job as one dataset, once.

    Their samples are written again if parts of the format cannot be joined, if the parts have other features than
    `schema`, or if `write_again` says so.
    """
    module = format_named(format)
    if isinstance(schema, Inferred):
        schema = schema.features
        write_again = write_again or any(_features_of(part) != schema for part in finished.values())
    with folder.locked(finished):
        if is_published(folder, path, module):  # by a run that was killed then
            return
        if (module.part_format is not None or write_again) and folder.kept(_WHOLE) is None:
            own = dict(options if module.part_format else module.join.part_options(path, mode, options))
            own.pop("generate_keys", None)  # all samples have keys
            _write_again(folder, _published_parts(folder, finished), schema, format, own, progress)
        parts = _published_parts(folder, finished)
        _check_append(path, schema, format, mode, options)  # another writer may have created it since
        module.join(folder, parts, path, Features.of(schema), mode=mode, began=began and began.state, **options)


def _published_parts(folder: JobFolder, finished: Mapping[int, FinishedPart]) -> list[FinishedPart]:
    """Return the parts to publish: those with samples, or the one that has the samples of all."""
    if (whole := folder.kept(_WHOLE)) is not None:
        return [whole]
    parts = [finished[number] for number in sorted(finished)]
    return [part for part in parts if part.rows] or parts[:1]


def _write_again(
    folder: JobFolder,
    parts: Sequence[FinishedPart],
    schema: Any,
    format: str,
    options: Mapping[str, Any],
    progress: bool | None,
) -> None:
    """Write the samples of all parts as one part."""
    inner = folder.new_part(len(parts))
    quiet, total = None if progress is None else not progress, sum(part.rows for part in parts)
    bar = Bar(total=total, desc="join", unit=" samples", disable=quiet)
    with Writer(folder.path(inner), schema, format, "create", options) as out, bar:
        for part in parts:
            features = _features_of(part) or Features.of(schema)
            stored = samples_in(folder.path(part.folder), features, format_named(format).part_format or format)
            for columns in stored.chunks():
                out.extend(columns)
                bar.update(len(columns))
    folder.keep(_WHOLE, FinishedPart(inner, place_of(folder.path(inner)).paths(), out.samples))


def _features_of(part: FinishedPart) -> Features | None:
    """Return the features of a part if they were inferred."""
    return None if part.fields is None else Inferred(Features.from_json(part.fields)).features


def _joined_features(finished: Mapping[int, FinishedPart]) -> Inferred:
    """Return features that fit the samples of all parts, which were inferred."""
    parts = [Inferred(Features.from_json(finished[number].fields)) for number in sorted(finished)]
    return reduce(Inferred.join, parts)


def _are_small(
    folder: JobFolder,
    finished: Mapping[int, FinishedPart],
    source: Dataset[Any],
    steps: WriteSteps,
    options: Mapping[str, Any],
) -> bool:
    """Return whether the parts of a job that calls functions are much smaller than the shards of other jobs.

    They are many because functions may be slow. Parts of as many samples as the caller wants stay as they are.
    """
    calls = steps.any or below_functions(source.rows, source.chosen)[0] is not source.rows
    if not calls or options.get("shard_rows") is not None or len(finished) < 2:
        return False
    paths = [f"{part.folder}/{file}" for part in finished.values() for file in part.files]
    size = sum(folder.place.for_each(lambda path: folder.place.stat(path).size, paths))
    return size < len(finished) * (options.get("shard_size") or _SHARD_BYTES) / _SMALL


@contextmanager
def _kept_after_errors(
    folder: JobFolder, inputs: object, module: Format, target: Place, mode: str, parts: int
) -> Iterator[dict[int, FinishedPart]]:
    """Give a dict for the finished parts; after an error say what is kept, or remove what cannot be continued."""
    finished: dict[int, FinishedPart] = {}
    try:
        yield finished
    except BaseException as error:
        late = mode == "create" and isinstance(error, FileExistsError | FileNotFoundError) and exists(target, module)
        if late or folder.is_outdated or (isinstance(error, Exception) and folder.was_removed(error, finished)):
            folder.discard_all()  # what workers have written to it after another run has removed it
            if not isinstance(error, AlreadyExistsError):
                raise folder.published_meanwhile() from error
        else:
            folder.explain(error, parts, inputs)
        raise


def warn_of_left_out(path: str, left_out: Sequence[LeftOut], total: int) -> None:
    """Warn that samples were left out, and name the first ones."""
    if left_out:
        some = "; ".join(f"{one.place}: {one.error}" for one in left_out[:_FEW])
        warnings.warn(
            f"{redact_url(path)}: {len(left_out)} of {total} samples were left out because of errors ({some}"
            f"{'; ...' * (len(left_out) > _FEW)}); the attribute left_out of the result lists them",
            stacklevel=3,
        )
