"""`create_default_jsonl_indexer`: an indexer of the JSON lines below a folder."""

from __future__ import annotations

from shardex.compat.data_forager.index_stores.fs_based import IndexStore
from shardex.compat.data_forager.indexers.text_lines import FileTextLinesIndexer
from shardex.compat.data_forager.utils import find_files_recursive, natural_sort


def create_default_jsonl_indexer(input_base_path: str, name: str | None = None) -> FileTextLinesIndexer:
    """Return an indexer of all ``.jsonl`` files below a folder, in natural order; the index is in its folder ``index``.

    >>> import json, os, tempfile; folder = tempfile.mkdtemp()
    >>> with open(os.path.join(folder, "a.jsonl"), "w") as file: print(json.dumps({"text": "hello"}), file=file)
    >>> create_default_jsonl_indexer(folder)(); sorted(os.listdir(os.path.join(folder, "index")))
    ['file_location.txt', 'sample_locations.bin', 'shardex.json']
    """
    paths = natural_sort(find_files_recursive(input_base_path, ["*.jsonl", "*.JSONL"]))
    return FileTextLinesIndexer(paths, IndexStore(base_path=input_base_path), name=name)
