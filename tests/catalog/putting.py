"""A process that puts versions of one name, and prints the number of each that was acknowledged.

Arguments: URL, a word for its descriptions, how many. Stdin: settings of storages, as `export_credentials` has them.
"""

import sys

import shardex as sx
from shardex.catalog import Content
from shardex.sources import import_credentials


def main(url: str, word: str, count: int) -> None:
    import_credentials(sys.stdin.buffer.read())
    content = Content(fingerprint="0" * 16, urls=["s3://data/0.tar"], format="tar", samples=1)
    catalog = sx.Catalog(url)
    print("ready", flush=True)
    for k in range(count):
        print(catalog.put("corpus", content, description=f"{word} {k}").version, k, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
