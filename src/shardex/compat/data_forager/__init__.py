"""data-forager 0.2.0 on shardex: the same modules, classes, functions and files.

``from data_forager.datasets.jsonl import JsonlDataset`` becomes
``from shardex.compat.data_forager.datasets.jsonl import JsonlDataset``. Indexes and token files are those of the
original, in both directions; the file ``index/shardex.json``, which the original ignores, is new.
"""
