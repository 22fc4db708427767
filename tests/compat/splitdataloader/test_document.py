"""The code blocks of the document of splitdataloader run, with only import lines changed."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compat.document import code_blocks

PLACEHOLDERS = {
    "example_writer(...)": "example_writer()",
    "example_loader(...)": "example_loader()",
    "batch_generator(...) -> Iterator[BatchType]:\n    ...": """batch_generator(count) -> Iterator[BatchType]:
    for _ in range(count):
        yield BatchType()""",
    "batch_wise_processing(...)": "batch_wise_processing()",
    "args... # args or kwargs": "20, # args or kwargs",
}


def test_every_code_block_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    packets = [bytes([k]) * (k % 50) for k in range(250)]
    seen: list[bytes] = []
    batches: list[Any] = []
    namespace: dict[str, Any] = {
        "__name__": "__main__",
        "Iterable": Iterable,
        "Iterator": Iterator,
        "some_source": lambda: iter(packets),
        "do_something": seen.append,
        "do_something_with": batches.append,
    }
    blocks = code_blocks("003.md", "splitdataloader", PLACEHOLDERS)
    assert len(blocks) == 3
    for block, function in zip(blocks, ("example_writer", "example_loader", "batch_wise_processing"), strict=True):
        block.run(namespace)
        namespace[function]()
    assert capsys.readouterr().out == "250\n"
    assert len(list((tmp_path / "tmp" / "training_data").glob("bin*.dat"))) == 128
    assert seen != packets and sorted(seen) == sorted(packets)
    assert [type(batch) for batch in batches] == [namespace["BatchType"]] * 20
