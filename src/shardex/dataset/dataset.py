"""`Dataset`: rows, an order and a choice of fields. `open` makes one; every view is another one over the same rows.

Reading is that of `SampleView`, choosing samples that of `SubsetView`; here are views with other fields, samples of
another type, or samples made of several, and exchange with other tools. A dataset is itself rows, so datasets can be
made of datasets (`combine.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from shardex import dataset as room
from shardex import display, layers
from shardex.columns import check_fields
from shardex.dataset.sample_view import SampleView
from shardex.dataset.subset_view import SubsetView
from shardex.dataset.views import PLUMBING, description, field_names, function_name, new_names, note
from shardex.features import Feature
from shardex.kernel import Columns
from shardex.layers import RenamedRows, decoded_rows, over_stored
from shardex.order import Order
from shardex.other_names import DATASET, MAP, missing_attribute, refuse
from shardex.rows import AbstractRows
from shardex.samples import Batch, T_co

if TYPE_CHECKING:
    from shardex.catalog import Content
    from shardex.dataset.sliding import Missing
    from shardex.dataset.token_stream import Labels
    from shardex.dataset.windows import Strategy
    from shardex.samples import Lens

U = TypeVar("U")


class Dataset(SubsetView[T_co]):
    """A sequence of samples. An integer gives a sample; a slice, a list or a mask gives a view, which copies nothing.

    The name of a field gives its column: the values of all samples, stacked if they are numbers or arrays of one shape.

    >>> import shardex as sx
    >>> ds = sx.open([{"x": k, "name": f"n{k}"} for k in range(10)])
    >>> ds[3]
    DictSample(x=3, name='n3')
    >>> ds[2:8:2].select("x").read([0, 2])["x"]
    array([2, 6])
    >>> ds["name"][:3]
    ['n0', 'n1', 'n2']
    >>> [batch.x.tolist() for batch in ds.where("x < 6").ordered(4)]
    [[0, 1, 2, 3], [4, 5]]
    """

    __slots__ = ()

    # -- fields -----------------------------------------------------------------------------------------------

    def select(self, *fields: str | Sequence[str]) -> Dataset:
        """Return a view of these fields, in this order; its samples are `DictSample`.

        >>> import shardex as sx
        >>> ds = sx.open([{"x": 1, "y": 2, "z": 3}])
        >>> ds.select("z", "x")[0], ds.select(["y"])[0]
        (DictSample(z=3, x=1), DictSample(y=2))
        """
        return Dataset(self._rows, self._order, check_fields(self.fields, field_names(fields)), self._notes)

    def drop(self, *fields: str | Sequence[str]) -> Dataset:
        """Return a view without these fields.

        >>> import shardex as sx
        >>> sx.open([{"x": 1, "y": 2, "z": 3}]).drop("x", "z")[0]
        DictSample(y=2)
        """
        out = check_fields(known := self.fields, field_names(fields))
        return self.select([name for name in known if name not in out])

    def rename(self, names: Mapping[str, str] | None = None, /, **more: str) -> Dataset:
        """Return a view with other names for some fields: a dict of old and new names, or ``old="new"``.

        >>> import shardex as sx
        >>> sx.open([{"img": 1, "y": 2}]).rename(img="image")[0]
        DictSample(image=1, y=2)
        """
        renamed = new_names(self.fields, {**(names or {}), **more})
        return self._over(over_stored(self._rows, lambda rows: RenamedRows(rows, renamed), renamed))

    def stack(self, names: Mapping[str, Sequence[str]] | None = None, /, **more: Sequence[str]) -> Dataset:
        """Return a view in which fields of numbers, or of arrays of one shape, are one array under a new name.

        Missing values are NaN. The dtype is one that holds those of all fields, as numpy chooses it.

        >>> import shardex as sx
        >>> sx.open([{"low": 1.5, "high": 3, "day": "mon"}]).stack(price=["low", "high"])["price"]
        array([[1.5, 3. ]])
        """
        groups, fields = {**(names or {}), **more}, self.fields
        return self._over(over_stored(self._rows, lambda rows: layers.StackedRows(rows, fields, groups)))

    # -- media -----------------------------------------------------------------------------------------------

    @property
    def media_fields(self) -> Sequence[str]:
        """Fields with images, audio or video as stored bytes."""
        found = self._rows.media_fields
        return found if self._fields is None else [name for name in found if name in self._fields]

    @property
    def stored(self) -> Dataset[T_co]:
        """The same view with media as they are stored: bytes. Whatever copies data reads this one."""
        rows = self._rows.stored
        return self if rows is self._rows else Dataset(rows, self._order, self._fields, self._notes)

    def stored_feature(self, name: str) -> Feature | None:
        """The feature that decodes the stored bytes of a field of media to the values of this view, or None."""
        return self._rows.stored_feature(name)

    def decode(self, form: Any = None, /, **fields: Any) -> Dataset[T_co]:
        """Return a view with images, audio and video decoded in another form, for all fields or by field.

        The form is "numpy" (images have height, width and channels, the default), "torch" (channels first), "pil", or
        "bytes" (or False) for the stored bytes. Images may have steps instead, in a list: `Resize`, `CenterCrop`,
        `Pad`; random ones are given to a `Loader`. A feature such as ``Audio(rate=16000)`` replaces the stored options.

        >>> import numpy as np, shardex as sx, tempfile
        >>> image = np.zeros((4, 6, 3), np.uint8)
        >>> ds = sx.write(tempfile.mkdtemp() + "/d", [{"image": image}], {"image": sx.Image()})
        >>> ds[0].image.shape, ds.decode(image=[sx.media.Resize((2, 2))])[0].image.shape, ds.decode(False)[0].image[1:4]
        ((4, 6, 3), (2, 2, 3), b'PNG')
        """
        return Dataset(decoded_rows(self._rows, self._fields, form, fields), self._order, self._fields, self._notes)

    # -- types and functions ----------------------------------------------------------------------------------

    def as_type(self, sample_type: type[U]) -> Dataset[U]:
        """Return a view with samples of another type: by the shortest path of registered lenses, or by field names.

        >>> import shardex as sx
        >>> from shardex import packable
        >>> @packable
        ... class Named:
        ...     name: str
        >>> sx.open([{"x": k, "name": f"n{k}"} for k in range(10)]).as_type(Named)[3]
        Named(name='n3')
        """
        return self._over(layers.typed_view(self._rows, self._fields, sample_type))

    def view(self, lens: Lens[Any, U]) -> Dataset[U]:
        """Return the view of all samples through a lens.

        >>> import shardex as sx
        >>> double = sx.Lens(lambda sample: {"double": 2 * sample.x})
        >>> sx.open([{"x": 3}]).view(double)[0]
        DictSample(double=6)
        """
        return self._over(layers.lens_view(self._rows, self._fields, lens))

    @overload
    def map(
        self, function: Callable[[Batch[T_co]], Batch[U]], *, schema: Any = None, batched: Literal[True]
    ) -> Dataset[U]: ...
    @overload
    def map(
        self,
        function: Callable[[Batch[T_co]], Mapping[str, Any] | Columns],
        *,
        schema: Any = None,
        batched: Literal[True],
    ) -> Dataset: ...
    @overload
    def map(
        self, function: Callable[[T_co], Mapping[str, Any]], *, schema: Any = None, batched: Literal[False] = False
    ) -> Dataset: ...
    @overload
    def map(
        self, function: Callable[[T_co], U], *, schema: Any = None, batched: Literal[False] = False
    ) -> Dataset[U]: ...
    def map(
        self, function: Callable[[Any], Any], *, schema: Any = None, batched: bool = False, **unknown: Any
    ) -> Dataset[Any]:
        """Return a view that calls a function for each sample, or for whole batches, when it is read.

        The function returns a whole new sample: a mapping of fields or an instance of a `packable` class. Fields that
        it does not return are not in the view; `with_fields` adds some to the others. `schema` has the features of all
        fields of the mapping. Without it they are found in the results for the first samples: a field that the function
        passes on unchanged keeps its feature, others are inferred. A later result that does not fit raises an error.

        With `batched` the function gets a `Batch` of all samples that are read at once, and returns columns (arrays,
        lists) of the same length: a mapping, or a `Batch`. What it returns for a sample must not depend on the others.

        >>> import shardex as sx
        >>> sx.open([{"x": k} for k in range(5)]).map(lambda s: {"double": 2 * s.x}).read([1, 3])["double"]
        array([2, 6])
        >>> sx.open([{"x": k} for k in range(5)]).map(lambda b: {**b, "double": 2 * b.x}, batched=True)[3]
        DictSample(x=3, double=6)
        """
        refuse("Dataset.map", MAP, unknown, ["schema", "batched"])
        rows = layers.mapped_view(self._rows, self._fields, function, schema, batched)
        return self._over(rows, note(f"mapped {'in batches ' * batched}by", function_name(function)))

    def with_fields(self, schema: Any = None, /, **functions: Callable[[T_co], Any]) -> Dataset:
        """Return a view whose samples have more fields, each computed by a function of the sample when it is read.

        A field that the samples have already is replaced. All functions get the sample as it is in this dataset.
        Reading other fields calls no function. `schema` has the features of these fields; without it they are found in
        the first results, as `map` finds them.

        >>> import shardex as sx
        >>> ds = sx.open([{"x": k, "y": 2.5} for k in range(5)])
        >>> ds.with_fields(double=lambda s: 2 * s.x)[3]
        DictSample(x=3, y=2.5, double=6)
        >>> print(ds.with_fields({"y": "float32"}, y=lambda s: s.y / 2).features)
        x int64, y float32
        """
        rows = layers.view_with_fields(self._rows, self._fields, functions, schema)
        return self._over(rows, note("with", ", ".join(functions)))

    def _over(self, rows: AbstractRows, note: str = "") -> Dataset[Any]:
        """Return a dataset over a layer of this one's rows, in the order of this view."""
        fields = self._fields if rows is self._rows else None
        return Dataset(rows, self._order, fields, (*self._notes, note) if note else self._notes)

    def _derived(
        self, rows: AbstractRows, order: Order | None, fields: Sequence[str] | None, notes: Sequence[str]
    ) -> Dataset[Any]:
        return Dataset(rows, order, fields, notes)

    # -- several samples --------------------------------------------------------------------------------------

    def __add__(self, other: Dataset[T_co]) -> Dataset[T_co]:  # type: ignore[override]
        """Return the samples of this dataset, then those of another with the same fields, as `concat` does."""
        return Dataset(room.combine.concat_rows([self, other])) if isinstance(other, Dataset) else NotImplemented

    def sliding(
        self,
        length: int,
        horizon: int = 0,
        stride: int = 1,
        *,
        group: str | Sequence[str] | None = None,
        time: str | None = None,
        missing: Missing = "drop",
    ) -> Dataset:
        """Return a view whose samples are windows of `length` rows and the `horizon` rows after them.

        Rows are sorted by the field `time` (without it they stay in order) inside of each `group`: a field, or several.
        A window has rows of one group; windows of a group begin `stride` rows apart. A group that is shorter than a
        window has none.

        A sample has the values of each field as one array: ``x`` of the first rows and, with a horizon, ``x_future`` of
        the rows after them; the fields of the group have one value. Fields of numbers, classes, times and arrays of
        one shape are stacked, classes as their numbers (`features` of this dataset has the names); others are left out.

        `missing` says what becomes of windows in which a value is None or NaN: ``"drop"`` leaves them out, ``"error"``
        raises an error (for both, fields that can have such values are read now), ``"keep"`` keeps them, as NaN or NaT;
        a missing integer or class then is an error of the read.

        Nothing is copied: the view has two numbers for each row, and any window can be read.

        >>> import shardex as sx
        >>> ds = sx.open([{"day": k // 2, "shop": "ab"[k % 2], "sales": 10 * k} for k in range(10)])
        >>> windows = ds.sliding(3, horizon=1, group="shop", time="day")
        >>> len(windows), windows[0].shop, windows[0].sales.tolist(), windows[0].sales_future.tolist()
        (4, 'a', [0, 20, 40], [60])
        """
        rows, text = room.sliding.sliding_rows(self, length, horizon, stride, group, time, missing)
        return Dataset(rows, None, None, (*self._notes, text))

    def windows(
        self,
        length: int,
        stride: int | None = None,
        *,
        offset: int | str = 0,
        seed: int = 0,
        field: str | None = None,
        across: bool = True,
        partial: bool = False,
        labels: Labels = False,
        dtype: Any = None,
        ignore_index: int = -100,
        loss_mask: str | bool | None = None,
    ) -> Dataset:
        """Return a view whose samples are windows of `length` tokens; nothing is stored, any window can be read.

        The tokens of all documents, in the order of this view, are one stream; window k begins at ``offset + k *
        stride`` (`stride` is `length` by default). With ``across=False`` every document is a stream of its own, so no
        window has tokens of two documents. Tokens at the end that do not fill a window are left out, unless `partial`
        keeps them as a shorter window.

        `field` is the array of tokens: by default the only array of one dimension, or ``"tokens"``. Other arrays of
        one dimension that have a value for each token, such as a loss mask, are cut in the same way; fields of other
        kinds are left out. `dtype` converts the tokens.

        With ``offset="random per epoch"`` the windows of each epoch of a `Loader` begin at another offset below
        `stride`, which depends on `seed` and the epoch; every epoch has the same number of windows. So do views of it
        (`take`, `split`, `shuffle`); in a `concat`, `join` or `mix` the offset is that of the first epoch. A `split`
        cuts between windows: to keep tokens apart, split the documents first.

        With `labels` samples have the fields ``inputs`` and ``labels`` instead of the tokens, int64 by default: the
        label of a token is the next one. A window then reads one token more, so every token but the first is a label
        once. With ``labels="huggingface"`` they are ``input_ids`` and ``labels``, the same tokens in both, because the
        models of Hugging Face take the next ones themselves. Labels whose loss mask is 0 are `ignore_index`:
        `loss_mask` is the name of an array, True for ``"loss_mask"``, False for none, and by default the one that
        ``ds.metadata["loss_mask"]`` names. If no metadata says what an array called ``loss_mask`` means, this argument
        must be given. With ``"huggingface"`` samples have no loss mask of their own.

        >>> import shardex as sx
        >>> ds = sx.open([{"tokens": [1, 2, 3, 4]}, {"tokens": [5, 6, 7, 8, 9]}])
        >>> ds.windows(3)["tokens"].tolist(), ds.windows(3, across=False)["tokens"].tolist()
        ([[1, 2, 3], [4, 5, 6], [7, 8, 9]], [[1, 2, 3], [5, 6, 7]])
        >>> pairs = ds.windows(4, labels=True)
        >>> pairs["inputs"].tolist(), pairs["labels"].tolist()
        ([[1, 2, 3, 4], [5, 6, 7, 8]], [[2, 3, 4, 5], [6, 7, 8, 9]])
        """
        rows, order, text = room.windows.windows_of(
            self,
            length,
            stride,
            offset,
            seed,
            dtype,
            field=field,
            across=across,
            partial=partial,
            labels=labels,
            ignore_index=ignore_index,
            loss_mask=loss_mask,
        )
        return Dataset(rows, order, None, (*self._notes, text))

    def pack(
        self,
        length: int,
        strategy: Strategy = "concat",
        *,
        segments: bool = False,
        field: str | None = None,
        labels: Labels = False,
        dtype: Any = None,
        pad: int | None = None,
        ignore_index: int = -100,
        loss_mask: str | bool | None = None,
    ) -> Dataset:
        """Return a view whose samples have `length` tokens, made of pieces of documents; nothing is stored.

        With the strategy ``"concat"`` the tokens of all documents, in the order of this view, are one stream, which is
        cut after every `length` tokens. ``"best_fit"`` puts whole documents together so that little is padded; only
        documents longer than `length` are cut. ``"truncate"`` has one document in each sample, without what is behind
        its first `length` tokens. What is left of a sample is padded with `pad` (by default the padding token of
        ``ds.metadata``, or its end-of-text token, or 0).

        With `segments` samples have three more fields, for attention inside of documents: ``segment_ids`` (1, 2, ...
        for the pieces of a sample, 0 in padding), ``positions`` (from 0 on in each piece, 0 in padding) and
        ``cu_seqlens`` (0, the end of each piece, and `length` if there is padding: as a last piece). They replace
        arrays of these names in the documents. Only fields that are read are computed: `select` those that you use.
        For `field`, `dtype` and other arrays see `windows`; in padding, other arrays are 0.

        With `labels` samples have ``inputs`` and ``labels`` instead of the tokens, int64 by default: the label of a
        token is the next one of its piece. It is `ignore_index` for the last token of a piece, in padding, and where
        the loss mask of the label is 0 (for `loss_mask` see `windows`). With ``labels="huggingface"`` they are
        ``input_ids`` and ``labels`` of the same tokens, `ignore_index` for the first token of a piece instead of the
        last one, and ``attention_mask`` (0 in padding); ``positions`` are then called ``position_ids``.

        >>> import shardex as sx
        >>> ds = sx.open([{"tokens": [1, 2, 3]}, {"tokens": [4, 5, 6, 7]}, {"tokens": [8]}])
        >>> ds.pack(4)["tokens"].tolist(), ds.pack(4, "best_fit")["tokens"].tolist()
        ([[1, 2, 3, 4], [5, 6, 7, 8]], [[1, 2, 3, 8], [4, 5, 6, 7]])
        >>> view = ds.pack(4, "best_fit", segments=True, labels=True)
        >>> view["labels"].tolist(), view["segment_ids"].tolist()
        ([[2, 3, -100, -100], [5, 6, 7, -100]], [[1, 1, 1, 2], [1, 1, 1, 1]])
        """
        options: Any = {"segments": segments, "field": field, "labels": labels, "ignore_index": ignore_index}
        rows, text = room.windows.packs_of(self, length, strategy, dtype=dtype, pad=pad, loss_mask=loss_mask, **options)
        return Dataset(rows, None, None, (*self._notes, text))

    # -- other tools ------------------------------------------------------------------------------------------

    def to_arrow(self, fields: Sequence[str] | None = None) -> Any:
        """Return all samples as a `pyarrow.Table`; fields that are stored as Arrow columns are not copied."""
        return room.to_arrow.table(self if fields is None else self.select(*fields))

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return all samples as an Arrow stream, for tools that read one: polars, pandas, DuckDB, pyarrow."""
        return room.to_arrow.capsule(self, requested_schema)

    def to_huggingface(self) -> Any:
        """Return all samples as a Hugging Face `datasets.Dataset`; nothing is written to disk."""
        return room.huggingface.to_huggingface(self)

    def to_pandas(self, fields: Sequence[str] | None = None) -> Any:
        """Return all samples as a `pandas.DataFrame`; classes are categories."""
        return room.to_arrow.to_pandas(self if fields is None else self.select(*fields))

    def to_croissant(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        description: str | None = None,
        license: str | None = None,
        url: str | None = None,
        card: bool = True,
        overwrite: bool = False,
    ) -> None:
        """Write metadata of these data in the form Croissant 1.1, and a card of Hugging Face beside them.

        `path` is the file, or a folder for ``metadata.json`` in it; the data are CSV, JSON Lines or Parquet files in
        this folder or below it. They are read once, for their checksums. What is not given (`name`, `description`,
        `license`) is that of the catalog, if the dataset was opened by a name. `url` is the page of the dataset.
        The card is ``README.md``; without `card` there is none. Files that exist are kept, unless `overwrite` is True.

        >>> import os, shardex as sx, tempfile; folder = tempfile.mkdtemp() + "/digits"
        >>> ds = sx.write(folder, [{"x": 1}, {"x": 2}], format="parquet")
        >>> ds.to_croissant(folder, description="One and two.", license="CC0-1.0", url="https://example.com/digits")
        >>> sorted(os.listdir(folder)), sx.open(folder + "/metadata.json")["x"][:]
        (['README.md', 'metadata.json', 'part-00000.parquet'], array([1, 2]))
        """
        given = {"name": name, "description": description, "license": license, "url": url}
        room.to_croissant.to_croissant(self, path, given, card, overwrite)

    def reference(self) -> dict[str, Any]:
        """Return a small dict of JSON values for checkpoints and experiment trackers: which data these are.

        ``sx.open(reference)`` opens the same data again, and raises an error if they have changed since. It has the
        fingerprint, URLs, format, options and the number of samples, and the name and version if the dataset was opened
        by these. Views other than a `select` have none: take the reference of the dataset that was opened.

        >>> import shardex as sx, tempfile
        >>> ds = sx.write(tempfile.mkdtemp() + "/d", [{"x": 1}])
        >>> reference = ds.reference(); more = sx.write(ds.reference()["urls"][0], [{"x": 2}], mode="append")
        >>> len(more), len(sx.open(reference)), reference["format"], reference["options"]
        (2, 1, 'arrow', {'version': 1})
        """
        return room.references.reference_of(self)

    def content(self) -> Content:
        """Return what a catalog stores about this dataset."""
        return room.references.content_of(self)

    # -- how it is shown --------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return description(self)

    def _repr_html_(self) -> str:
        return room.show.overview(self)

    def show(self, n: int = 16, *, path: str | os.PathLike[str] | None = None) -> display.Figure:
        """Return a figure of the first samples, which a notebook shows; with `path` also write it to a file.

        Images, first frames of videos, plots of arrays and audio, names of classes, and text, each bounded; at most 400
        samples. ``ds.shuffle(0).show()`` shows random samples, ``ds.select("image", "label").show()`` some fields. The
        name of the file ends in ``.html`` or ``.png``; images and PNG files need Pillow.

        >>> import shardex as sx, tempfile
        >>> ds = sx.open([{"x": k, "name": f"n{k}"} for k in range(10)])
        >>> len(ds.show(4, path=tempfile.mkdtemp() + "/some.html"))
        4
        """
        return room.show.show(self, n, path)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in PLUMBING]

    def _ipython_key_completions_(self) -> list[str]:
        return self.fields

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            hints = DATASET
            if not (name in DATASET or name.startswith("_") or hasattr(type(self), name)):
                with suppress(Exception):  # features that are found by a function of the user
                    hints = {one: f'ds["{one}"], or the attribute of a sample: ds[0].{one}' for one in self.fields}
            raise missing_attribute(self, name, hints)

    def __reduce__(self) -> tuple[Any, ...]:
        return Dataset, (self._rows, self._order, self._fields, self._notes)


for _part in (SampleView, SubsetView):
    for _method in vars(_part).values():
        if isinstance(_method, FunctionType):
            _method.__qualname__ = f"Dataset.{_method.__name__}"  # which errors about arguments say
