"""Runs code written for the five systems shardex grew out of: only import lines change.

In: the calls, and the files, of synthefy-dataset-utils, atdata, data-forager, splitdataloader and stable-datasets. Out:
the results and exceptions that their documents promise, from the core of shardex. A package for each system has the
module paths of the original: ``data_forager.indexers.jsonl_indexer`` is
``shardex.compat.data_forager.indexers.jsonl_indexer``. Nothing here is imported with shardex.

- `formats`: the formats that only one of these systems has (bins, columns_tar, data_forager); they are entry points in
  `pyproject.toml`, as the formats of other packages are, and import no system
- `coverage`: which names of each system are here, and what serves them; ``python -m shardex.compat`` prints it
"""
