"""The names of data_forager that are here, and what serves them."""

COVERED: dict[str, str] = {}
