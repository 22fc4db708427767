"""What torch, Hugging Face `datasets`, pandas and others call things, and what shardex has instead.

In: a name that shardex does not have. Out: the hint that an error about it ends with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardex.errors import ArgumentError, nearest

_BY_SEED = "seed=; every random number depends on it, the epoch and the position only"
_NO_NEED = "not needed"
_PANDAS = "pandas.read_csv(...) with it, and pass the frame to sx.write"

LOADER: Mapping[str, str] = {
    "batch_sampler": "a view of the samples, ds[rows], or max_tokens= and bucket= for batches by length",
    "buffer_size": "shuffle=True, which shuffles all samples; or block= and window= for cold disks",
    "collate_fn": "collate=, which gets a batch of columns; collate=dict gives dicts",
    "drop_remainder": "drop_last=",
    "generator": _BY_SEED,
    "multiprocessing_context": 'worker_type="process" or "thread"; processes are new interpreters, never forks',
    "num_epochs": "epochs=",
    "num_replicas": "world_size=",
    "num_workers": "workers=; without, batches are made in the loop, which is fastest if samples are only read",
    "persistent_workers": f"{_NO_NEED}: workers stay until loader.close()",
    "pin_memory_device": 'device="cuda"',
    "prefetch": "read_ahead=",
    "prefetch_factor": "read_ahead=",
    "sampler": "a view of the samples: ds[rows], ds.balanced(field), ds.weighted(weights); or rank= and world_size=",
    "shuffle_seed": "seed=",
    "timeout": f"{_NO_NEED}: a worker that has ended is reported at once",
    "worker_init_fn": "a transform with a second parameter, a random generator made for each sample",
}
"""Arguments of loaders."""
_STATE = (
    "the state of the loader to resume: load_state_dict(state), or accelerator.register_for_checkpointing(loader) in "
    "place of skip_first_batches. A Trainer of Hugging Face needs both: load_state_dict with the state that a callback "
    "saved, and ignore_data_skip=True, which alone begins the epoch again; see docs/trainer.md"
)
LOADER_ATTRIBUTES: Mapping[str, str] = {
    "collate_fn": "the argument collate=",
    "num_workers": "the argument workers=",
    "sampler": _STATE,
}
"""Attributes of loaders."""
DATASET: Mapping[str, str] = {
    "add_column": 'sx.join(ds, sx.open({"name": values})), or tx.add_field(...) in sx.edit(path)',
    "add_item": 'sx.create(path, ..., mode="append")',
    "batch": "ds.ordered(batch_size), or sx.Loader(ds, batch_size)",
    "batched": "ds.ordered(batch_size), or sx.Loader(ds, batch_size)",
    "cast": "sx.write(path, ds, schema); batches have the dtypes of sx.Loader(ds, n, dtype=...)",
    "cast_column": "sx.write(path, ds, schema); batches have the dtypes of sx.Loader(ds, n, dtype=...)",
    "class_encode_column": "sx.write(path, ds, schema) with sx.ClassLabel([...]) for the field",
    "class_names": 'ds.features["label"].names',
    "column_names": "ds.fields",
    "columns": "ds.fields",
    "concatenate": "sx.concat([a, b]), or a + b",
    "describe": "ds.to_pandas().describe()",
    "dropna": 'ds.where("x IS NOT NULL")',
    "dtypes": "ds.features",
    "fillna": "ds.map(function); batches have the value of sx.Loader(ds, n, fill=...)",
    "flatten_indices": "sx.write(path, ds)",
    "group_by": 'ds.sql("SELECT ..., count(*) FROM ds GROUP BY ...")',
    "groupby": 'ds.sql("SELECT ..., count(*) FROM ds GROUP BY ...")',
    "iloc": "ds[k], ds[a:b], ds[[5, 3]]",
    "info": "ds.features, len(ds)",
    "iter": "ds.ordered(batch_size), or sx.Loader(ds, batch_size)",
    "load_state_dict": "the state of a loader: sx.Loader(ds, batch_size).load_state_dict(state)",
    "loc": "ds.get(key)",
    "num_columns": "len(ds.fields)",
    "num_rows": "len(ds)",
    "push_to_hub": 'sx.write(path, ds, format="parquet")',
    "query": 'ds.where("x > 3")',
    "remove_columns": "ds.drop(...)",
    "rename_column": 'ds.rename(old="new")',
    "rename_columns": 'ds.rename({"old": "new"})',
    "repeat": "sx.Loader(ds, batch_size, epochs=n)",
    "resample": 'ds.sql("SELECT ... GROUP BY ...")',
    "rolling": "ds.sliding(length)",
    "save_to_disk": "sx.write(path, ds)",
    "schema": "ds.features",
    "select_columns": "ds.select(...)",
    "set_epoch": "ds.shuffle(seed=0, epoch=n); a Loader shuffles each epoch by itself",
    "set_format": 'sx.Loader(ds, batch_size, to="torch"); images of single samples: ds.decode("torch")',
    "set_transform": "ds.map(function), which calls it when a sample is read",
    "shape": "len(ds), len(ds.fields)",
    "shard": "ds[index::count]; a Loader divides batches by rank= and world_size=",
    "sort_values": "ds.sort(field, descending=...)",
    "state_dict": "the state of a loader: sx.Loader(ds, batch_size).state_dict()",
    "tail": "ds[-5:]",
    "to_csv": 'sx.write(path, ds, format="csv")',
    "to_dict": "ds.to_arrow().to_pydict(), or ds[name] for a column",
    "to_iterable_dataset": "sx.Loader(ds, batch_size)",
    "to_json": 'sx.write(path, ds, format="jsonl")',
    "to_list": "list(ds)",
    "to_parquet": 'sx.write(path, ds, format="parquet")',
    "to_polars": "polars.DataFrame(ds)",
    "to_tuple": 'ds.select("jpg", "cls"); batches and samples have the fields by name, batch.jpg',
    "to_torch": 'sx.Loader(ds, batch_size, to="torch")',
    "train_test_split": "ds.split([0.8, 0.2], seed=0)",
    "unique": 'ds.sql("SELECT DISTINCT name FROM ds")',
    "with_format": 'sx.Loader(ds, batch_size, to="torch"); images of single samples: ds.decode("torch")',
    "with_transform": "ds.map(function), which calls it when a sample is read",
}
"""Methods and attributes of datasets."""
VIEWS: Mapping[str, str] = {
    "ascending": "descending=",
    "by": "the names of the fields as the first arguments",
    "key": "the names of the fields as the first arguments",
    "random_state": "seed=",
    "reverse": "descending=",
    "shuffle": "seed=, which shuffles the samples first",
    "stratify_by_column": "stratify=",
    "test_size": "the shares as the first argument: ds.split([0.8, 0.2], seed=0)",
    "train_size": "the shares as the first argument: ds.split([0.8, 0.2], seed=0)",
}
"""Arguments of `Dataset.sort` and `split`."""
CLASS_LABEL: Mapping[str, str] = {"int2str": "name(number)", "str2int": "number(name)"}
"""Methods of `ClassLabel`."""
MAP: Mapping[str, str] = {
    "batch_size": f"{_NO_NEED}: with batched=True the function gets all samples that are read at once",
    "cache_file_name": "sx.cache",
    "features": "schema=",
    "fn_kwargs": "functools.partial(function, ...)",
    "input_columns": "ds.select(...).map(...)",
    "keep_in_memory": f"{_NO_NEED}: results are made when they are read, and not kept",
    "load_from_cache_file": "sx.cache",
    "num_proc": "sx.write(path, ds, transform=function, workers=n), which stores results, or sx.Loader(..., workers=n)",
    "remove_columns": f"{_NO_NEED}: samples have the fields that the function returns",
    "with_indices": 'sx.join(ds, sx.open({"row": range(len(ds))})).map(...)',
}
"""Arguments of `Dataset.map` and `filter`."""
OPEN: Mapping[str, str] = {
    "chunksize": "ds.ordered(batch_size)",
    "columns": "sx.open(path).select(...)",
    "cache_dir": "cache=",
    "data_dir": "the path of the folder",
    "data_files": "sx.load_dataset(path, data_files=...), or a list of paths",
    "date_format": _PANDAS,
    "dayfirst": _PANDAS,
    "decimal": _PANDAS,
    "dtype": "schema=",
    "encoding": _PANDAS,
    "endpoint_url": 'sx.storage("s3://bucket", endpoint=...), or the variable AWS_ENDPOINT_URL',
    "engine": "format=",
    "keep_in_memory": f"{_NO_NEED}: files are mapped",
    "na_values": "missing=",
    "nrows": "sx.open(path).take(n)",
    "num_proc": f"{_NO_NEED}: files are read in place",
    "parse_dates": f"schema=, if dates are in ISO 8601; else {_PANDAS}",
    "quotechar": "quote=",
    "sep": "delimiter=",
    "skiprows": _PANDAS,
    "split": "sx.load_dataset(path, split=...)",
    "storage_options": 'sx.storage("s3://bucket", ...)',
    "streaming": f"{_NO_NEED}: samples are read when they are used, also from remote files",
    "thousands": _PANDAS,
    "token": 'sx.storage("https://host", token=...)',
    "trust_remote_code": f"{_NO_NEED}: data never runs code",
    "usecols": "sx.open(path).select(...)",
}
"""Options of `open` and `load_dataset`."""
CREATE: Mapping[str, str] = {
    "filter_fn": "filter=",
    "fn": "transform=",
    "map": "transform=",
    "exist_ok": 'mode="append" or "overwrite"',
    "features": "schema=, the third argument",
    "max_shard_size": "shard_size=",
    "maxcount": "shard_rows=",
    "maxsize": "shard_size=",
    "num_proc": "workers= of sx.write",
    "num_workers": "workers= of sx.write",
    "overwrite": 'mode="overwrite"',
    "size_limit": "shard_size=",
}
"""Options of `create` and `write`."""
_NOT_PUBLISHED = "abort(), or leave the with block by an error: nothing is published"
WRITER: Mapping[str, str] = {
    "add": "append(sample), or extend(samples)",
    "cancel": _NOT_PUBLISHED,
    "discard": _NOT_PUBLISHED,
    "finish": "close()",
    "insert": "append(sample), or extend(samples)",
    "rollback": _NOT_PUBLISHED,
    "write": "append(sample), or extend(samples)",
}
"""Methods of writers and transactions."""
STORAGE: Mapping[str, str] = {
    "anon": "anonymous=",
    "aws_access_key_id": "access_key_id=",
    "aws_secret_access_key": "secret_access_key=",
    "aws_session_token": "token=",
    "client_kwargs": "endpoint=, region=",
    "connect_timeout": "timeout=",
    "endpoint_url": "endpoint=",
    "key": "access_key_id=",
    "max_attempts": "retries=",
    "max_concurrency": "concurrency=",
    "profile": "access_key_id= and secret_access_key=",
    "region_name": "region=",
    "secret": "secret_access_key=",
    "verify": "allow_invalid_certificates=",
}
"""Settings of `storage`."""
_MOVED = {
    "media": "CenterCrop Flip Pad RandomCrop RandomResizedCrop Resize audio_info decode_audio decode_frames video_info",
    "store": "Edit Lost Problem Recovered Version history leftovers restore",
}
"""Names of modules of `shardex` that are often looked for in `shardex` itself."""
MODULE: Mapping[str, str] = {
    **{name: f"sx.{module}.{name}" for module, names in _MOVED.items() for name in names.split()},
    **{
        name: f"sx.edit(path) as tx in a with block, then tx.{name}(...)"
        for name in ("update", "delete", "append", "add_field")
    },
    "Array2D": "Array(dtype, shape)",
    "Array3D": "Array(dtype, shape)",
    "Array4D": "Array(dtype, shape)",
    "Array5D": "Array(dtype, shape)",
    "DataLoader": "Loader",
    "IterableDataset": "open",
    "MDSWriter": "create",
    "ShardWriter": 'create(path, schema, format="tar")',
    "StreamingDataLoader": "Loader",
    "StreamingDataset": "open",
    "TarWriter": 'create(path, schema, format="tar")',
    "WebDataset": "open",
    "WebLoader": "Loader",
    "concatenate_datasets": "concat",
    "info": "open(path)",
    "from_arrow": "open(table), or open(table, schema=...)",
    "from_huggingface": "open(dataset), or load_dataset(splits) for a datasets.DatasetDict",
    "from_pandas": "open(frame)",
    "interleave_datasets": "mix",
    "load_from_disk": "open",
    "optimize": "write(path, inputs, transform=function, workers=n)",
    "read_csv": "open",
    "read_json": "open",
    "read_parquet": "open",
    "to_parquet": 'write(path, ds, format="parquet")',
    "versions": "sx.store.history(path), and sx.open(path, version=n)",
}
"""Names of the module `shardex`."""
MEDIA: Mapping[str, str] = {
    "ColorJitter": "transform= of a Loader, a function of samples with decoded images",
    "Compose": 'a list of steps: decode={"image": [sx.media.Resize(64), sx.media.Flip()]}',
    "Normalize": 'dtype={"image": sx.Cast("float32", 1 / 255, mean, std)} of a Loader',
    "RandomHorizontalFlip": "sx.media.Flip",
    "ToTensor": 'to="torch" of a Loader; numbers from 0 to 1 with dtype={"image": sx.Cast("float32", 1 / 255)}',
}
"""Names of `shardex.media`."""


def instead(names: Mapping[str, str], name: str, known: Iterable[str] = ()) -> str:
    """Return a hint what to use instead of a name of another library, or the known name that is nearest to it.

    >>> instead(LOADER, "num_replicas"), instead(LOADER, "batchsize", ["batch_size"]), instead(LOADER, "zzz")
    (': use world_size=', ": did you mean 'batch_size'?", '')
    """
    if name not in names:
        return nearest(name, known)
    return f": {'' if names[name].startswith(_NO_NEED) else 'use '}{names[name]}"


def missing_name(module: str, name: str, names: Mapping[str, str], known: Iterable[str]) -> AttributeError:
    """Return the error for a name that a module does not have."""
    hint = "" if name.startswith("_") else instead(names, name, known)
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}")


def missing_attribute(owner: object, name: str, names: Mapping[str, str]) -> AttributeError:
    """Return the error for an attribute that an object does not have; raise that of a property which failed."""
    if hasattr(type(owner), name):
        object.__getattribute__(owner, name)
    public = [one for one in dir(owner) if not one.startswith("_")]
    hint = "" if name.startswith("_") else instead(names, name, public)
    return AttributeError(f"{type(owner).__name__} has no attribute {name!r}{hint}")


def refuse(what: str, names: Mapping[str, str], given: Mapping[str, object], known: Iterable[str]) -> None:
    """Raise `ArgumentError` if arguments were given that a function does not have.

    >>> refuse("Dataset.sort", {"reverse": "descending="}, {"reverse": True}, ["descending"])
    Traceback (most recent call last):
    shardex.errors.ArgumentError: expected arguments of Dataset.sort (descending), got reverse=: use descending=
    """
    for name in given:
        has = ", ".join(known)
        raise ArgumentError(f"expected arguments of {what} ({has}), got {name}={instead(names, name, known)}")
