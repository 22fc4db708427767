"""`SingleBatch`: makes one batch that is read by itself: its samples are transformed, and bad ones replaced."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from shardex.errors import SchemaError, ShardexError
from shardex.kernel import Columns, Integers
from shardex.loader.column_forms import Lengths
from shardex.loader.plan import MAX_ATTEMPTS, BadSample, PreparedBatch, find_failures, replacement_position
from shardex.loader.stats import TimeSpent
from shardex.loader.tensors import tensor_fields
from shardex.samples import fields_of

if TYPE_CHECKING:
    from shardex.loader.recipe import Recipe


def takes_generator(transform: Callable[..., Any]) -> bool:
    """Return True if a transform has a second required parameter, or one called `rng`.

    >>> takes_generator(lambda s: s), takes_generator(lambda s, noise: s), takes_generator(lambda s, rng=None: s)
    (False, True, True)
    """
    try:
        parameters = inspect.signature(transform).parameters.values()
    except (TypeError, ValueError):  # written in C
        return False
    if any(p.name == "rng" for p in parameters):
        return True
    needed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty]
    return len(needed) == 2


def random_generator(seed: int, epoch: int, position: int, purpose: str = "shardex rng") -> np.random.Generator:
    """Return the random generator of one position for a purpose; it depends on nothing else."""
    key = hashlib.blake2b(f"{purpose} {seed} {epoch}".encode(), digest_size=8).digest()
    return np.random.Generator(np.random.Philox(key=np.array([int.from_bytes(key, "little"), position], np.uint64)))


class SingleBatch:
    """Makes one batch sample by sample where needed: transforms, and replaces bad samples."""

    def __init__(self, recipe: Recipe, epoch: int, positions: Integers, spent: TimeSpent) -> None:
        self.recipe = recipe
        self.options = recipe.options
        self.epoch = epoch
        self.positions = positions
        self.spent = spent
        self.view = recipe.view(epoch)
        self.bad: list[BadSample] = []
        self._replaced: set[int] = set()

    def build(self) -> PreparedBatch:
        """Return the batch, with bad samples replaced if `on_error` allows it."""
        if self.options.transform is None:
            with self.spent.reading():
                data, lengths, tensors = self._read(self._convert)
        else:
            with self.spent.reading():
                samples = self._read(Columns.to_samples)
            with self.spent.transforming():
                data, lengths, tensors = self._convert(self._transform_all(samples))
        batch = PreparedBatch(len(self.positions), data, lengths, bad=self.bad)
        batch.tensors = tensors
        if self._replaced:
            batch.mask = np.ones(batch.rows, np.bool_)
            batch.mask[list(self._replaced)] = False
        return batch

    def _convert(self, columns: Columns) -> tuple[Columns, Lengths, Sequence[str]]:
        """Return columns in their forms, the lengths of their rows, and fields that become tensors in any batch."""
        tensors = () if self.options.to == "torch" else tensor_fields(columns)
        return *self.recipe.forms.convert(columns), tensors

    def _read(self, finish: Callable[[Columns], Any]) -> Any:
        """Read the positions and call `finish`; if either fails, replace the positions that fail."""

        def read(positions: Integers) -> Any:
            return finish(self.recipe.read(self.epoch, positions))

        try:
            return read(self.positions)
        except MemoryError:
            raise
        except Exception as error:
            if not self.options.replaces_bad_samples:
                self._add_location(error, self.positions)
                raise
        chosen = self.positions.copy()
        for index, failed in find_failures(read, self.positions).items():
            chosen[index], _ = self._replace(index, failed, read)
        return read(chosen)

    def _add_location(self, error: Exception, positions: Integers) -> None:
        """Add epoch and positions to an error as a note."""
        first, last = int(positions[0]), int(positions[-1])
        where = f"positions {first} to {last}" if first != last else f"position {first}: {self._describe(first)}"
        error.add_note(f"in epoch {self.epoch}, {where}")

    def _describe(self, position: int) -> str:
        number, shard = self._locate(position)
        return f"sample {number} of {shard}" if shard else f"sample {number}"

    def _locate(self, position: int) -> tuple[int, str]:
        """Number of a sample and path of its file."""
        at = np.array([position])
        return int(self.recipe.sample_numbers(self.epoch, at)[0]), self.view.shards(at)[0]

    def _replace(self, index: int, error: Exception, read: Callable[[Integers], Any]) -> tuple[int, Any]:
        """Return the position that replaces a bad one, and what `read` returned for it."""
        position = int(self.positions[index])
        for other in self._replacements(index):
            try:
                value = read(np.array([other]))
                self._record(index, other, error)
                return other, value
            except MemoryError:
                raise
            except Exception as failed:
                last = failed
        raise ShardexError(
            f"expected some good samples, got a bad one at position {position} of epoch {self.epoch} and at all "
            f"{MAX_ATTEMPTS} tried in its place; the last failed with {type(last).__name__}: {last}"
        ) from error

    def _replacements(self, index: int) -> Iterator[int]:
        """Yield the positions to try instead of a bad one; those that fit into the batch if lengths are limited."""
        position, lengths = int(self.positions[index]), self.recipe.lengths
        draw = partial(replacement_position, self.options.seed, self.epoch, position, length=len(self.view))
        if lengths is None:
            yield from map(draw, range(MAX_ATTEMPTS))
            return
        others = np.append([draw(attempt) for attempt in range(8 * MAX_ATTEMPTS)], np.delete(self.positions, index))
        batch = lengths.at(self.epoch, self.positions)
        over = np.maximum(lengths.at(self.epoch, others) - (batch.max() if self.recipe.padded else batch[index]), 0)
        yield from others[np.argsort(over, kind="stable")[:MAX_ATTEMPTS]].tolist()

    def _record(self, index: int, other: int, error: Exception) -> None:
        """Record which sample replaces a bad one, and the first error of the bad one."""
        position, instead = int(self.positions[index]), self._locate(other)[0]
        earlier = next((one for one in self.bad if one.position == position), None)
        if earlier is not None:
            self.bad[self.bad.index(earlier)] = replace(earlier, instead=instead)
        else:
            message = f"{type(error).__name__}: {error}"
            self.bad.append(BadSample(self.epoch, position, *self._locate(position), message, instead))
        self._replaced.add(index)

    def _transform_all(self, samples: Sequence[dict[str, Any]]) -> Columns:
        results: list[Any] = []
        for index, sample in enumerate(samples):
            try:
                result = self._transform(int(self.positions[index]), sample)
            except MemoryError:
                raise
            except Exception as error:
                if not self.options.replaces_bad_samples:
                    self._add_location(error, self.positions[index : index + 1])
                    raise
                result = self._replace(index, error, self._read_and_transform)[1]
            try:
                results.append(fields_of(result))
            except SchemaError:
                raise SchemaError(
                    f"expected the transform to return a sample (a mapping of fields), got {type(result).__name__}; "
                    f"return a dict with a name for each value - at {self._describe(int(self.positions[index]))}"
                ) from None
        return Columns.from_samples(results).stack()

    def _read_and_transform(self, positions: Integers) -> Any:
        """Read and transform the sample at one position."""
        return self._transform(int(positions[0]), self.recipe.read(self.epoch, positions).sample(0))

    def _transform(self, position: int, values: dict[str, Any]) -> Any:
        transform, sample = self.options.transform, self.recipe.make_sample(values)
        assert transform is not None
        if self.recipe.takes_generator:
            return transform(sample, random_generator(self.options.seed, self.epoch, position))
        return transform(sample)
