"""The buffer through which readers see a cached file."""

from __future__ import annotations

import numpy as np

from shardex.sources.page_file import PAGE, PageBuffer


def test_a_buffer_exists_as_long_as_a_view_of_it() -> None:
    buffer = PageBuffer(10 * PAGE)
    view = buffer.view()
    assert view is not None and view.readonly
    part = np.frombuffer(view, np.uint8)[5 * PAGE : 5 * PAGE + 3]
    del view
    buffer.fill(5 * PAGE, b"abc")
    assert buffer.is_held and part.tobytes() == b"abc"
    del part
    assert buffer.view() is None
