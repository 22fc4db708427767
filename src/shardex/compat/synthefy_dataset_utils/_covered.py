"""The names of synthefy_dataset_utils that are here, and what serves them."""

COVERED: dict[str, str] = {}
