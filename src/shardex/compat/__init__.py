"""Runs code written for the five systems shardex grew out of: only import lines change.

In: the calls, and the files, of synthefy-dataset-utils, atdata, data-forager, splitdataloader and stable-datasets. Out:
the results and exceptions that their documents promise, from the core of shardex. A package for each system has the
module paths of the original: ``data_forager.indexers.jsonl_indexer`` is
``shardex.compat.data_forager.indexers.jsonl_indexer``. Nothing here is imported with shardex.

- `coverage`: which names of each system are here, and what serves them; ``python -m shardex.compat`` prints it
"""
