"""`SubsetView`: views of some samples, or of all in another order: slices, splits, conditions, sorts, draws.

In: positions, shares, conditions, fields. Out: datasets over the same rows in another order; nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from shardex import dataset as room
from shardex import layers
from shardex.dataset.sample_view import SampleView
from shardex.dataset.views import field_names, function_name, note, sorted_positions
from shardex.errors import ArgumentError
from shardex.order import Pick, Shuffle
from shardex.other_names import MAP, VIEWS, refuse
from shardex.progress import Bar
from shardex.rows import whole_number
from shardex.samples import T_co

if TYPE_CHECKING:
    from shardex.dataset.dataset import Dataset
    from shardex.dataset.dataset_dict import DatasetDict
    from shardex.dataset.split_views import By
    from shardex.dataset.sql import Params


class SubsetView(SampleView[T_co]):
    """Samples of which some can be chosen, by position, share, value or chance, and put in another order."""

    __slots__ = ()

    def take(self, count: int) -> Dataset[T_co]:
        """Return a view of the first `count` samples."""
        return self._view(slice(0, max(0, whole_number("count", count))))

    def head(self, count: int = 5) -> list[T_co]:
        """Return the first samples as a list; `take` returns a view of them.

        >>> import shardex as sx
        >>> sx.open([{"x": k} for k in range(10)]).head(2)
        [DictSample(x=0), DictSample(x=1)]
        """
        return list(self.take(count))

    def skip(self, count: int) -> Dataset[T_co]:
        """Return a view of all but the first `count` samples."""
        return self._view(slice(max(0, whole_number("count", count)), None))

    def shuffle(self, seed: int = 0, epoch: int = 0) -> Dataset[T_co]:
        """Return a view of all samples in random order, chosen by seed and epoch; the order takes no memory.

        >>> import shardex as sx
        >>> ds = sx.open([{"x": k} for k in range(5)]).shuffle(seed=3)
        >>> sorted(s.x for s in ds)
        [0, 1, 2, 3, 4]
        """
        return self.through(Shuffle(len(self), whole_number("seed", seed), whole_number("epoch", epoch)), "shuffled")

    @overload
    def split(
        self,
        shares: Mapping[str, float],
        /,
        *,
        seed: int | None = None,
        stratify: By | None = None,
        group: By | None = None,
        time: str | None = None,
        within: By | None = None,
    ) -> DatasetDict: ...
    @overload
    def split(self, *, time: str, at: Mapping[str, Any]) -> DatasetDict: ...
    @overload
    def split(
        self,
        *shares: float | Sequence[float],
        seed: int | None = None,
        stratify: By | None = None,
        group: By | None = None,
        time: str | None = None,
        within: By | None = None,
        at: Any = None,
    ) -> tuple[Dataset[T_co], ...]: ...
    def split(
        self,
        *shares: Any,
        seed: int | None = None,
        stratify: By | None = None,
        group: By | None = None,
        time: str | None = None,
        within: By | None = None,
        at: Any = None,
        **unknown: Any,
    ) -> Any:
        """Divide into parts with these shares of the samples; the remaining share is one more part.

        Parts are consecutive; with a `seed` the samples are shuffled first. Shares with names give a `DatasetDict`.

        - `stratify` is a field: every part has its share of the samples with each value, exact to one sample.
        - `group` is a field: samples with one value of it are all in one part. One group after another, large first,
          goes to the part that it brings nearest to its share, or with `stratify` to its share of each value. Sizes are
          near to the shares, not exact. The seed decides among groups of one size. Every part gets at least one group.
        - `time` is a field: the parts follow one another in time, and no time is in two of them. Samples are sorted by
          it. `within` is a field whose groups are cut each by itself, so that every part has the same share of each
          group's time. Instead of shares, `at` can give times, from which on samples are in the next part:
          ``at="2024-01-01"``, a list, or a dict with the begin of each part (None for the first). A time of `at` needs
          a zone if those of the field have one, and must have none otherwise.

        Only these fields are read, now; the parts store row numbers. Instead of a field, `stratify`, `group` and
        `within` take a list of fields, or an array with a value for each sample.

        >>> import shardex as sx
        >>> ds = sx.open([{"x": k, "label": "ab"[k % 5 == 0]} for k in range(10)])
        >>> [len(part) for part in ds.split(0.8)], [len(part) for part in ds.split([0.5, 0.3, 0.2], seed=0)]
        ([8, 2], [5, 3, 2])
        >>> ds.split({"train": 0.8, "test": 0.2}, seed=0).num_rows
        {'train': 8, 'test': 2}
        >>> [part["label"] for part in ds.split(0.5, stratify="label")]
        [['b', 'a', 'a', 'a', 'a'], ['b', 'a', 'a', 'a', 'a']]
        >>> [part["x"].tolist() for part in ds.split(time="x", at=[3, 8])]
        [[0, 1, 2], [3, 4, 5, 6, 7], [8, 9]]
        """
        refuse("Dataset.split", VIEWS, unknown, ["seed", "stratify", "group", "time", "within", "at"])
        by: Any = {"stratify": stratify, "group": group, "time": time, "within": within}
        return room.split_views.split_view(self, shares, seed=seed, at=at, **by)

    # -- by values --------------------------------------------------------------------------------------------

    def where(
        self, text: str, params: Params = None, *, timeout: float | None = None, memory_limit: str | None = None
    ) -> Dataset[T_co]:
        """Return a view of the samples for which an SQL condition holds.

        The condition is what follows WHERE in the SQL of DuckDB; columns are the fields, and `_row` is the position.
        Pass values in `params`: a list for ``?`` or a dict for ``$name``. `timeout` is in seconds, `memory_limit` a
        text such as ``"4GB"``.

        >>> import shardex as sx
        >>> ds = sx.open([{"x": k, "name": f"n{k}"} for k in range(10)])
        >>> [sample.x for sample in ds.where("x > ? AND name <> 'n8'", [6])]
        [7, 9]
        """
        query, limits = room.sql.condition(text, self._sql_features), room.sql.Limits(timeout, memory_limit)
        return self.fixed().through(Pick(room.sql.view_matching(self, query, params, limits)), note("where", text))

    def filter(
        self, predicate: Callable[[T_co], object], *, progress: bool | None = None, **unknown: Any
    ) -> Dataset[T_co]:
        """Return a view of the samples for which a function is true. All samples are read now; `where` is faster.

        >>> import shardex as sx
        >>> len(sx.open([{"x": k} for k in range(5)]).filter(lambda sample: sample.x % 2))
        2
        """
        refuse("Dataset.filter", MAP, unknown, ["progress"])
        if isinstance(predicate, str):
            raise ArgumentError(f"expected a function of one sample, got {predicate!r}: conditions are for ds.where")
        layers.check_callable(predicate)
        quiet = None if progress is None else not progress
        samples = Bar(self, total=len(self), desc="filter", unit=" samples", disable=quiet, leave=False)
        true: list[bool] = []
        for sample in samples:
            true.append(bool(layers.call_function(predicate, sample, lambda: f"sample {len(true)}")))
        chosen = Pick(np.flatnonzero(true))
        return self.fixed().through(chosen, note("filtered by", function_name(predicate)))

    def sort(self, *fields: str | Sequence[str], descending: bool = False, **unknown: Any) -> Dataset[T_co]:
        """Return a view in the order of the values of a field, or of several; samples with equal values stay in order.

        None and NaN come last. The columns are read now; the view stores the row numbers.

        >>> import shardex as sx
        >>> sx.open([{"x": 2}, {"x": 3}, {"x": 1}]).sort("x", descending=True)["x"]
        array([3, 2, 1])
        """
        refuse("Dataset.sort", VIEWS, unknown, ["descending"])
        order = Pick(sorted_positions(self, names := field_names(fields), descending))
        return self.fixed().through(order, f"sorted by {', '.join(names)}{', descending' * bool(descending)}")

    # -- draws ------------------------------------------------------------------------------------------------

    def balanced(self, by: By, length: int | None = None, *, seed: int = 0) -> Dataset[T_co]:
        """Return a view that draws equally often from every class; `by` is a field, several, or an array of classes.

        It has `length` samples (default: as many as this dataset), in random order; the number of samples of a class is
        exact to one. Every epoch of a `Loader` is another draw. Inside a class nothing is drawn again before all its
        samples were drawn, over all epochs, so samples of small classes are repeated, those of large ones take turns.

        >>> import shardex as sx
        >>> ds = sx.open([{"x": k, "label": int(k == 0)} for k in range(100)]).balanced("label", 10)
        >>> sorted(ds["label"].tolist())
        [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]
        """
        return self.fixed().through(*room.split_views.balanced_order(self, by, length, seed))

    def weighted(
        self,
        weights: str | Sequence[float] | NDArray[Any],
        length: int | None = None,
        *,
        seed: int = 0,
        replacement: bool = True,
    ) -> Dataset[T_co]:
        """Return a view that draws samples by weights: a field, or a number of 0 or more for each sample.

        It has `length` samples (default: as many as this dataset), in random order. Every epoch of a `Loader` is
        another draw. A sample of weight w is expected ``length * w / sum`` times; it is drawn as often, to less than 2.

        With ``replacement=False`` no sample is in the view twice: each draw takes one of the remaining samples, with a
        chance by its weight; `length` is by default the number of samples with a weight above 0.

        >>> import shardex as sx
        >>> ds = sx.open([{"x": k, "w": [0.0, 1.0, 3.0][k]} for k in range(3)])
        >>> sorted(ds.weighted("w", 8)["x"].tolist())
        [1, 1, 2, 2, 2, 2, 2, 2]
        """
        return self.fixed().through(*room.split_views.weighted_order(self, weights, length, seed, replacement))
