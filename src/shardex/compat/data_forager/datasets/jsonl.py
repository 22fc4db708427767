"""`JsonlDataset`: samples that are lines of JSON."""

from __future__ import annotations

import json
from typing import Any

from shardex.compat.data_forager._errors import JsonLineError, TextEncodingError
from shardex.compat.data_forager.datasets._json_batch import for_collate
from shardex.compat.data_forager.datasets.common import Dataset
from shardex.compat.data_forager.sample_index import SampleIndex
from shardex.formats.jsonl import decode_json

_UTF8 = ("utf-8", "utf8", "UTF-8", "utf_8")
_MARK = "\ufeff".encode()


class JsonlDataset(Dataset):
    """Returns each line as the value that its JSON means, usually a dict; a batch of torch is a list of them."""

    def __init__(
        self, sample_index: SampleIndex, text_encoding: str = "utf-8", name: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(sample_index, name=name, **kwargs)
        self._text_encoding = text_encoding

    def _process_sample(self, sample_bytes: bytes) -> Any:
        if self._text_encoding in _UTF8:
            return decode_json(sample_bytes.removeprefix(_MARK))
        return json.loads(sample_bytes.decode(self._text_encoding).removeprefix("\ufeff"))

    def _for_batch(self, samples: list[Any]) -> list[Any]:
        return for_collate(samples)

    def _located(self, error: Exception, place: str) -> Exception:
        if isinstance(error, json.JSONDecodeError):
            what = f"{place}: expected JSON, got {error.doc[:60]!r}: {error.msg}, at character {error.pos}"
            return JsonLineError(f"{what}; repair or remove the line, and make the index again", error.doc, error.pos)
        if isinstance(error, UnicodeDecodeError):
            what = f"{place}: expected text in {self._text_encoding}, got {error.object[:60]!r}: {error.reason}"
            return TextEncodingError(error.encoding, error.object, error.start, error.end, what)
        return super()._located(error, place)
