"""`Image`: an image."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from shardex.errors import SchemaError
from shardex.features.feature import Feature
from shardex.features.media import Media, checked_size, is_pil_image, one_of
from shardex.media import MAX_PIXELS, encode_image, is_whole_jpeg

IMAGE_MODES = ("RGB", "L", "RGBA")
_IMAGE_FORMATS = ("png", "jpeg", "webp", "tiff", "bmp", "gif")
_SHORT_FORMATS = {"jpg": "jpeg", "tif": "tiff"}
_PIL_MODES = {"L": "L", "1": "L", "RGBA": "RGBA", "LA": "RGBA", "PA": "RGBA", "I;16": None, "I": None, "F": None}
"""Modes of images of PIL, and those to which they are decoded without loss; for all others it is RGB."""


@dataclass(frozen=True, slots=True, repr=False)
class Image(Media):
    """An image: stored as JPEG, PNG, WebP, ..., decoded to a uint8 array of height, width and channels.

    `mode` is what it is decoded to: "RGB", "L" (grey), "RGBA", or None for what the file has. A decoded image is
    resized to `size` (height, width). Arrays that are written are encoded as `format`; bytes, files and PIL images keep
    the encoding that they have.

    >>> str(Image()), str(Image("L", (28, 28))), Image(format="jpg").format
    ('image', "image(mode='L', size=(28, 28))", 'jpeg')
    """

    kind: ClassVar[str] = "image"
    extensions: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("jpg", "jpeg", "jfif"), "jpeg"),
        **dict.fromkeys(("tif", "tiff"), "tiff"),
        **{name: name for name in ("png", "webp", "bmp", "gif")},
        **dict.fromkeys(("ppm", "pgm"), "png"),
    }
    mode: str | None = "RGB"
    size: tuple[int, int] | None = None
    format: str = "png"

    if TYPE_CHECKING:  # at run time the one of the dataclass

        def __init__(
            self,
            mode: str | None = "RGB",
            size: SequenceOf[SupportsIndex] | None = None,
            format: str = "png",
            *,
            decode: bool = True,
        ) -> None: ...

    def __post_init__(self) -> None:
        if self.mode is not None and self.mode not in IMAGE_MODES:
            raise SchemaError(f"expected one of the modes {', '.join(IMAGE_MODES)} or None, got {self.mode!r}")
        object.__setattr__(self, "size", checked_size(self.size))
        given = _SHORT_FORMATS.get(str(self.format), self.format)
        object.__setattr__(self, "format", one_of(given, _IMAGE_FORMATS, "formats"))
        self._check_decode()

    @classmethod
    def of_hint(cls, hint: Any) -> Feature | None:
        """Return the feature of the class of images of PIL."""
        is_pil = isinstance(hint, type) and (hint.__module__, hint.__name__) == ("PIL.Image", "Image")
        return cls() if is_pil else None

    @classmethod
    def of_value(cls, value: Any) -> Feature | None:
        """Return the feature of an image of PIL."""
        return cls(_PIL_MODES.get(value.mode, "RGB")) if is_pil_image(value) else None

    def join(self, other: Feature) -> Feature | None:
        """Return the mode that holds both."""
        if not isinstance(other, Image):
            return None
        return Image(next(mode for mode in (None, "RGBA", "RGB", "L") if mode in (self.mode, other.mode)))

    def fit(self, value: Any, *, stored: bool = False) -> Any:
        """Return the bytes of an image."""
        if type(value) is bytes and (stored or is_whole_jpeg(value, MAX_PIXELS)):
            return value  # the common case, in half the time
        return Media.fit(self, value, stored=stored)

    def encoded(self, value: Any) -> bytes:
        """Return the bytes of an image."""
        if isinstance(value, np.ndarray) and value.dtype == np.uint16 and self.mode is not None:
            raise SchemaError(f"expected uint8 for mode {self.mode!r}, got uint16 (mode=None keeps 16 bits)")
        return encode_image(value, self.format, mode=self.mode)

    def array_of_tensor(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the array of a tensor, which may be grey."""
        return array if array.ndim == 2 and array.dtype == np.uint8 else Media.array_of_tensor(self, array)

    def hf_options(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the mode, and the name of our option that it holds."""
        return {"mode": self.mode}, ("mode",)
