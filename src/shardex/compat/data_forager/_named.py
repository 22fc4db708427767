"""The logger that every class of data-forager has; importing it configures nothing."""

import logging
from typing import Any


class Named:
    """An object with a logger of its name, by default that of its class."""

    _log: logging.Logger

    def __init__(self, name: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._name = name or type(self).__name__
        self._log = logging.getLogger(f"data_forager.{self._name}")
