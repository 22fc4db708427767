"""The names of splitdataloader that are here, and what serves them."""

COVERED: dict[str, str] = {}
