"""Interface of sample generators, and the one that leaves lines as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from shardex.compat.data_forager.sample_generators.schema import SampleSchema


@dataclass
class SampleData:
    """The bytes of a sample, and the file that holds them."""

    sample_bytes: bytes
    file_path: str


class SampleGeneratorInterface(Protocol):
    """Makes samples of lines and stores them: for each file `prepare`, `create_samples` for its lines, `finish`."""

    def prepare(self, text_file_path: str) -> None:
        """Begin with a file."""

    def create_samples(self, text_line: bytes) -> list[SampleData]:
        """Make and store the samples of a line; samples of a file lie in it in the order in which they are returned."""
        ...

    def finish(self, is_last_file: bool) -> None:
        """End with the current file."""

    def get_sample_schema(self) -> SampleSchema | None:
        """Return what a sample is made of; None if it is not several arrays."""
        ...


class NOOPSampleGenerator:
    """Takes each line as a sample, which stays where it is."""

    def __init__(self) -> None:
        self._current_text_file = ""

    def prepare(self, text_file_path: str) -> None:
        """Begin with a file."""
        self._current_text_file = text_file_path

    def create_samples(self, text_line: bytes) -> list[SampleData]:
        """Return the line."""
        return noop_sample_processing(text_line, self._current_text_file)

    def finish(self, is_last_file: bool) -> None:
        """End with the current file."""
        self._current_text_file = ""

    def get_sample_schema(self) -> SampleSchema | None:
        """Return None: a line is no array."""
        return None


def noop_sample_processing(text_line: bytes, text_file_path: str) -> list[SampleData]:
    """Return a line as the only sample."""
    return [SampleData(text_line, text_file_path)]
