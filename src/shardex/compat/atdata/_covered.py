"""The names of atdata that are here, and what serves them."""

COVERED: dict[str, str] = {}
