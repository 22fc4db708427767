"""The names of stable_datasets that are here, and what serves them."""

COVERED: dict[str, str] = {}
