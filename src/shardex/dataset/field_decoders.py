"""How a field of media is decoded: `Decoding` is what a user chose, `decoder_of` returns what does it.

In: a feature and a choice. Out: an object that turns stored bytes into arrays, tensors or PIL images, one or many at a
time. Lists and structs with media inside are decoded value by value. Room `media` does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shardex.errors import ArgumentError, MissingExtraError, ShardexError, nearest
from shardex.kernel import Column, Columns
from shardex.media import ImageStep, Resize, decode_images, encode_image
from shardex.schema import Feature, Image, Map, Media, Optional, Struct, nested_features, unwrap_optional
from shardex.schema import Sequence as ListOf

FORMS = ("numpy", "torch", "pil", "bytes")
"""Forms of decoded media: arrays (height, width, channels), tensors (channels first), PIL images, stored bytes."""

Generators = Callable[[int], np.random.Generator]
"""Returns the random generator of a value by its number."""


@dataclass(frozen=True)
class Decoding:
    """The form of the values of a field of media, and the steps after decoding.

    >>> Decoding("torch").random
    False
    """

    form: str = "numpy"
    steps: tuple[ImageStep, ...] = ()

    @property
    def random(self) -> bool:
        """True if a step needs a random generator."""
        return any(step.random for step in self.steps)


def is_decoded(feature: Feature) -> bool:
    """Return whether a feature has media that are decoded by default.

    >>> is_decoded(Image()), is_decoded(ListOf(Image(decode=False)))
    (True, False)
    """
    return any(type(one) in _DECODERS and one.decode for _, one in nested_features(feature, ""))  # type: ignore[attr-defined]


# -- choices of users ------------------------------------------------------------------------------------------


def parse_decodings(
    known: Mapping[str, Feature], form: Any, fields: Mapping[str, Any], before: Mapping[str, Decoding] | None = None
) -> dict[str, Decoding]:
    """Return the decoding of each field of media: `form` for all, or what `fields` say of single ones.

    Without `form` the other fields are decoded as `before`, or as their features say.

    >>> parse_decodings({"a": Image(), "b": Image()}, None, {"b": False})
    {'a': Decoding(form='numpy', steps=()), 'b': Decoding(form='bytes', steps=())}
    """
    for name in fields:
        if name not in known:
            media = f"the fields of media {', '.join(known)}" if known else "a dataset with fields of media"
            raise ArgumentError(f"expected {media} to decode, got {name!r}{nearest(name, known)}")
    found = {}
    for name, feature in known.items():
        usual = (before or {}).get(name) or Decoding("numpy" if is_decoded(feature) else "bytes")
        whole = _parse(form, usual, "form")
        found[name] = _parse(fields.get(name), whole, name)
    for name, one in found.items():
        _check(name, known[name], one)
    return found


def _parse(given: Any, default: Decoding, name: str) -> Decoding:
    if given is None:
        return default
    if given is True or given is False:
        return Decoding("numpy" if given else "bytes")
    if isinstance(given, Decoding):
        return given
    if isinstance(given, str):
        if given not in FORMS:
            shown = ", ".join(map(repr, FORMS))
            raise ArgumentError(f"expected one of the forms {shown}, got {given!r} for {name}{nearest(given, FORMS)}")
        return Decoding(given)
    steps = tuple(given) if isinstance(given, list | tuple) else (given,)
    for step in steps:
        if not isinstance(step, ImageStep):
            raise ArgumentError(
                f"expected a form ({', '.join(FORMS)}), False, or steps such as sx.Resize(256), got {step!r:.200} for "
                f"{name}"
            )
    return Decoding("numpy" if default.form == "bytes" else default.form, steps)


def _check(name: str, feature: Feature, decoding: Decoding) -> None:
    """Raise for steps or forms that only images have."""
    if isinstance(unwrap_optional(feature), Image):
        if decoding.form == "bytes" and decoding.steps:
            raise ArgumentError(f"expected steps for decoded images, got the form 'bytes' - at field {name}")
    elif decoding.steps or decoding.form == "pil":
        what = "steps" if decoding.steps else "the form 'pil'"
        raise ArgumentError(f"expected {what} for a field of images only, got {feature} - at field {name}")


# -- decoders --------------------------------------------------------------------------------------------------


class FieldDecoder:
    """Decodes the values of one field of media; here value by value, as most media are."""

    def __init__(self, feature: Feature, decoding: Decoding) -> None:
        self.feature = unwrap_optional(feature)
        self.decoding = decoding

    def column(self, values: Sequence[Any], generators: Generators | None = None) -> Column:
        """Return all values decoded; an error has the number of its value as the attribute `index`."""
        found = []
        for index, value in enumerate(values):
            try:
                found.append(self.value(value))
            except ShardexError as error:
                error.index = index  # type: ignore[attr-defined]
                raise
        return Columns({"": found}, len(found)).stack().data[""]

    def value(self, value: Any) -> Any:
        """Return one value decoded."""
        return self._nested(self.feature, value)

    def result(self, value: Any) -> Any:
        """Return a value that a function made in decoded form: arrays are, anything else is encoded and decoded."""
        return value if isinstance(value, np.ndarray) or value is None else self.value(value)

    def _nested(self, feature: Feature, value: Any) -> Any:
        """Return lists and structs with the media inside of them decoded; keys of maps stay as they are."""
        if value is None:
            return None
        match feature:
            case Optional():
                return self._nested(feature.feature, value)
            case ListOf():
                return [self._nested(feature.feature, one) for one in value]
            case Map():
                return {key: self._nested(feature.value, one) for key, one in value.items()}
            case Struct():
                return {**value, **{n: self._nested(f, value[n]) for n, f in feature.fields.items() if n in value}}
            case Media() if is_decoded(feature):
                return decoder_of(feature, self.decoding).value(value)
        return value


class ImageDecoder(FieldDecoder):
    """Decodes images: many at a time, in threads."""

    feature: Image

    @cached_property
    def _options(self) -> dict[str, Any]:
        steps = self.decoding.steps if self.feature.size is None else (Resize(self.feature.size), *self.decoding.steps)
        return {"mode": self.feature.mode, "steps": steps}

    def column(self, values: Sequence[Any], generators: Generators | None = None) -> Column:
        """Return the images as one array if all have one size, otherwise as a `Ragged`; tensors as a list."""
        stored = [value if isinstance(value, bytes | memoryview) else encode_image(value) for value in values]
        found = decode_images(stored, generators=generators, **self._options)
        convert = _CONVERSIONS.get(self.decoding.form)
        return found if convert is None else [convert(one) for one in found]

    def value(self, value: Any) -> Any:
        """Return one image."""
        return self.column([value])[0]


def _to_tensor(pixels: Any) -> Any:
    """Return the tensor (channels, height, width) of an image, which shares its memory; frames stay in front."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "torch", 'decode("torch")') from None
    return torch.from_numpy(pixels).movedim(-1, -3)


def _to_pil(pixels: Any) -> Any:
    from PIL import Image as pillow  # decoding has imported it, or would have said that it is missing

    return pillow.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {"torch": _to_tensor, "pil": _to_pil}

_DECODERS: dict[type[Feature], type[FieldDecoder]] = {Image: ImageDecoder}


def decoder_of(feature: Feature, decoding: Decoding) -> FieldDecoder:
    """Return what decodes the values of a field."""
    return _DECODERS.get(type(unwrap_optional(feature)), FieldDecoder)(feature, decoding)
