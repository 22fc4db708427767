"""`TokenizedSampleWithAuxGenerator`: the parts of lines to samples of tokens and other arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardex.compat.data_forager.sample_generators._tokenizing import TokenizingGenerator
from shardex.compat.data_forager.sample_generators.aux.common import AuxDataGenerator, Part
from shardex.compat.data_forager.sample_generators.common import SampleGeneratorInterface
from shardex.compat.data_forager.sample_generators.schema import ArraySpec, SampleSchema
from shardex.errors import ArgumentError

ProcessPartsFunc = Callable[[bytes], list[Part]]
TokenizerFunc = Callable[[str], list[int]]


class TokenizedSampleWithAuxGenerator(TokenizingGenerator, SampleGeneratorInterface):
    """Tokenizes the parts of each line, and makes arrays with one value for each token.

    The parts of a line are one document, followed by `eos_idx`; the documents of all files are one stream that is cut
    into samples of `sample_size`. A sample has the tokens and then the arrays of `aux_generators`, sorted by name.
    """

    def __init__(
        self,
        process_parts_func: ProcessPartsFunc,
        tokenizer_func: TokenizerFunc,
        eos_idx: int,
        aux_generators: dict[str, AuxDataGenerator],
        token_dtype: Any = np.uint32,
        sample_size: int = 4096,
        base_output_path: str | None = None,
        file_name_postfix: str = "tokenized-samples",
        name: str | None = None,
    ) -> None:
        if not aux_generators:
            raise ArgumentError("expected at least one of aux_generators=, got none")
        if "tokens" in aux_generators:
            raise ArgumentError('expected another name than "tokens" in aux_generators=, which is that of the tokens')
        if sample_size is None:
            raise ArgumentError("expected a sample_size, which samples of several arrays need, got None")
        super().__init__(
            tokenizer_func, eos_idx, aux_generators, token_dtype, sample_size, base_output_path, file_name_postfix, name
        )
        self._process_parts_func = process_parts_func
        dtypes = {"tokens": self._token_dtype, **{one: aux_generators[one].dtype for one in sorted(aux_generators)}}
        arrays, offset = [], 0
        for one, dtype in dtypes.items():
            arrays.append(ArraySpec(one, str(np.dtype(dtype)), offset))
            offset += sample_size * np.dtype(dtype).itemsize
        self._sample_schema = SampleSchema(sample_size, arrays, offset)

    def _parts(self, text_line: bytes) -> Sequence[Part]:
        return self._process_parts_func(text_line)

    def get_sample_schema(self) -> SampleSchema:
        """Return the arrays of a sample."""
        return self._sample_schema
