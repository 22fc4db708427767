"""`TokenizedSampleGenerator`: the texts of lines to samples of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardex.compat.data_forager.sample_generators._tokenizing import TokenizingGenerator
from shardex.compat.data_forager.sample_generators.aux.common import Part
from shardex.compat.data_forager.sample_generators.common import SampleGeneratorInterface
from shardex.compat.data_forager.sample_generators.schema import SampleSchema

TokenizerFunc = Callable[[str], list[int]]
ProcessTextLineFunc = Callable[[bytes], str]


class TokenizedSampleGenerator(TokenizingGenerator, SampleGeneratorInterface):
    """Tokenizes the text of each line.

    With `sample_size` all documents, each followed by `eos_idx`, are one stream that is cut into samples of that
    length; the rest of a file goes on in the next one. Without it each line is one sample, without `eos_idx`. The
    samples of an input file are in ``{name}-{file_name_postfix}.bin`` in `base_output_path`, by default the folder
    ``tokenized-samples`` next to the input.
    """

    def __init__(
        self,
        process_text_line_func: ProcessTextLineFunc,
        tokenizer_func: TokenizerFunc,
        eos_idx: int,
        token_dtype: Any = np.uint16,
        sample_size: int | None = None,
        base_output_path: str | None = None,
        file_name_postfix: str = "tokenized-samples",
        name: str | None = None,
    ) -> None:
        super().__init__(
            tokenizer_func, eos_idx, {}, token_dtype, sample_size, base_output_path, file_name_postfix, name
        )
        self._process_text_line_func = process_text_line_func

    def _parts(self, text_line: bytes) -> Sequence[Part]:
        return (Part("text", self._process_text_line_func(text_line)),)

    def get_sample_schema(self) -> SampleSchema | None:
        """Return None: a sample is one array."""
        return None
