"""Decodes fields of media: `Decoding` has what the user chose, `decoder_of` returns the decoder for it.

In: a feature and a choice. Out: an object that turns stored bytes into arrays, tensors or PIL images, one or many at a
time. Lists and structs with media inside are decoded value by value. Room `media` does the work.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from shardex import media
from shardex.errors import ArgumentError, MissingExtraError, ShardexError, nearest
from shardex.features import (
    Audio,
    Feature,
    Image,
    Map,
    Media,
    Optional,
    Struct,
    Video,
    unwrap_optional,
)
from shardex.features import Sequence as ListOf
from shardex.kernel import Column, Columns, is_tensor

FORMS = ("numpy", "torch", "pil", "bytes")
"""Forms of decoded media: arrays (channels last), tensors (channels before height, width or frames of audio), PIL
images, stored bytes."""

Generators = Callable[[int], "np.random.Generator"]
"""Returns the random generator of a value by its number."""


@dataclass(frozen=True)
class Decoding:
    """The form of the values of a field of media, the steps after decoding, and options instead of the stored ones.

    >>> Decoding("torch").random, Decoding(feature=Video(8, sampling="random")).random
    (False, True)
    """

    form: str = "numpy"
    steps: tuple[media.ImageStep, ...] = ()
    feature: Media | None = None

    @property
    def random(self) -> bool:
        """True if a step, or the options, need a random generator."""
        return any(step.random for step in self.steps) or is_random(self.feature)


def is_decoded(feature: Feature) -> bool:
    """Return whether a feature has media that are decoded by default.

    >>> is_decoded(Image()), is_decoded(ListOf(Image(decode=False)))
    (True, False)
    """
    return any(type(one) in _DECODERS and one.decode for _, one in feature.nested(""))  # type: ignore[attr-defined]


def is_random(feature: Feature | None) -> bool:
    """Return whether a feature decodes frames that are chosen by chance."""
    return isinstance(feature, Audio | Video) and feature.sampling == "random"


# -- choices of users ------------------------------------------------------------------------------------------


def parse_decodings(
    known: Mapping[str, Feature], form: Any, fields: Mapping[str, Any], before: Mapping[str, Decoding] | None = None
) -> dict[str, Decoding]:
    """Return the decoding of each field of media: `form` for all fields, and other ones for single fields in `fields`.

    Without `form` the other fields are decoded as `before`, or as their features say.

    >>> found = parse_decodings({"a": Image(), "b": Image()}, None, {"b": False})
    >>> found["a"].form, found["b"].form
    ('numpy', 'bytes')
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
    if isinstance(given, Media):
        return Decoding(_form_after(default) if given.decode else "bytes", (), given)
    steps = tuple(given) if isinstance(given, list | tuple) else (given,)
    for step in steps:
        if not isinstance(step, media.ImageStep):
            raise ArgumentError(
                f"expected a form ({', '.join(FORMS)}), False, steps such as sx.media.Resize(256), or options such as "
                f"sx.Audio(rate=16000), got {step!r:.200} for {name}"
            )
    return Decoding(_form_after(default), steps, default.feature)


def _form_after(default: Decoding) -> str:
    """Return the form of a field for which steps or options were given."""
    return "numpy" if default.form == "bytes" else default.form


def _check(name: str, feature: Feature, decoding: Decoding) -> None:
    """Raise for options of another kind of media, and for steps or forms that only images have."""
    if decoding.feature is not None and type(decoding.feature) is not type(unwrap_optional(feature)):
        raise ArgumentError(f"expected options of {feature}, got {decoding.feature!r} - at field {name}")
    if isinstance(unwrap_optional(feature), Image):
        if decoding.form == "bytes" and decoding.steps:
            raise ArgumentError(f"expected steps for decoded images, got the form 'bytes' - at field {name}")
    elif decoding.steps or decoding.form == "pil":
        what = "steps" if decoding.steps else "the form 'pil'"
        raise ArgumentError(f"expected {what} for a field of images only, got {feature} - at field {name}")


# -- decoders --------------------------------------------------------------------------------------------------


class FieldDecoder:
    """Decodes the values of one field of media; here value by value, as most media are."""

    options: ClassVar[tuple[str, ...]] = ()
    """Names of the options of the feature that decoding depends on."""

    def __init__(self, feature: Feature, decoding: Decoding) -> None:
        self.feature = decoding.feature or unwrap_optional(feature)
        self.decoding = decoding

    @property
    def random(self) -> bool:
        """True if values are decoded with random generators."""
        return self.decoding.random or is_random(self.feature)

    def column(self, values: Sequence[Any], generators: Generators | None = None) -> Column:
        """Return all values decoded; an error has the number of its value as the attribute `index`."""
        found = []
        for index, value in enumerate(values):
            try:
                found.append(self.value(value))
            except ShardexError as error:
                error.index = index  # type: ignore[attr-defined]
                raise
        return Columns({"": found}, len(found)).stack().data[""] if found else found

    def value(self, value: Any) -> Any:
        """Return one value decoded."""
        return self._nested(self.feature, value)

    def result(self, value: Any) -> Any:
        """Return the result of a function in decoded form: arrays as they are, other objects encoded first and then
        decoded.
        """
        if isinstance(self.feature, Media) and is_tensor(value):
            return self.feature.channels_last(value)
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
    options = ("mode", "size")

    @cached_property
    def _options(self) -> dict[str, Any]:
        resized = () if self.feature.size is None else (media.Resize(self.feature.size),)
        return {"mode": self.feature.mode, "steps": (*resized, *self.decoding.steps)}

    def column(self, values: Sequence[Any], generators: Generators | None = None) -> Column:
        """Return the images as one array if all have one size, otherwise as a `Ragged`; tensors as a list."""
        stored = [value if isinstance(value, bytes | memoryview) else self._encoded(value) for value in values]
        found = media.decode_images(stored, generators=generators, **self._options)
        convert = _CONVERSIONS.get(self.decoding.form)
        if self.decoding.form == "pil" and self.feature.mode == "P":
            return [_to_pil(one, media.image_palette(data)) for one, data in zip(found, stored, strict=True)]
        return found if convert is None else [convert(one) for one in found]

    def _encoded(self, value: Any) -> bytes:
        return media.encode_image(self.feature.channels_last(value) if is_tensor(value) else value)

    def value(self, value: Any) -> Any:
        """Return one image."""
        return self.column([value])[0]


class ClipDecoder(FieldDecoder):
    """Decodes audio or video: many at a time, in threads."""

    feature: Audio | Video
    axis: ClassVar[int]
    """Axis of the channels in tensors."""

    @abstractmethod
    def decode_many(self, stored: Sequence[bytes], **options: Any) -> Any:
        """Return the arrays of many files."""

    def column(self, values: Sequence[Any], generators: Generators | None = None) -> Column:
        """Return one array if the options say that all have one shape, otherwise a `Ragged`; tensors as a list."""
        stored = [self._stored(value) for value in values]
        options = {name: getattr(self.feature, name) for name in self.options}
        found = self.decode_many(stored, generators=generators, **options)
        return [_to_tensor(one, self.axis) for one in found] if self.decoding.form == "torch" else found

    def _stored(self, value: Any) -> bytes:
        """Return the bytes of a file; views of mapped files are copied, as decoders read them in small pieces."""
        found: bytes = bytes(value) if isinstance(value, bytes | memoryview) else self.feature.fit(value)
        return found

    def value(self, value: Any) -> Any:
        """Return one value decoded."""
        return self.column([value])[0]


class AudioDecoder(ClipDecoder):
    """Decodes audio."""

    feature: Audio
    options = ("rate", "mono", "begin", "frames", "sampling", "pad")
    axis = -2

    def decode_many(self, stored: Sequence[bytes], **options: Any) -> Any:
        """Return the arrays of many files of audio."""
        return media.decode_audios(stored, **options)


class VideoDecoder(ClipDecoder):
    """Decodes videos."""

    feature: Video
    options = ("frames", "stride", "sampling", "begin", "pad", "size")
    axis = -3

    def decode_many(self, stored: Sequence[bytes], **options: Any) -> Any:
        """Return the arrays of many videos."""
        return media.decode_videos(stored, **options)


def _to_tensor(values: Any, axis: int = -3) -> Any:
    """Return the tensor of an image, audio or video, which shares its memory, with the channels moved from the end."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "torch", 'decode("torch")') from None
    return torch.from_numpy(values).movedim(-1, axis)


def _to_pil(pixels: Any, palette: Sequence[int] | None = None) -> Any:
    from PIL import Image as pillow  # decoding has imported it, or would have said that it is missing

    image = pillow.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    if palette is not None:
        image.putpalette(palette)  # makes it an image of the mode P
    return image


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {"torch": _to_tensor, "pil": _to_pil}

_DECODERS: dict[type[Feature], type[FieldDecoder]] = {
    Image: ImageDecoder,
    Audio: AudioDecoder,
    Video: VideoDecoder,
}


def decoder_of(feature: Feature, decoding: Decoding) -> FieldDecoder:
    """Return the decoder of the values of a field."""
    return _DECODERS.get(type(unwrap_optional(feature)), FieldDecoder)(feature, decoding)


def decode_alike(one: Feature | None, other: Feature | None) -> bool:
    """Return whether two features decode the same bytes to the same values; how they encode arrays may differ.

    >>> decode_alike(Image(format="jpeg"), Optional(Image())), decode_alike(Image("L"), Image())
    (True, False)
    """
    return one is not None and other is not None and _media_options(one) == _media_options(other)


def _media_options(feature: Feature) -> list[tuple[Any, ...]]:
    """Return path, type and options of all media in a feature."""
    some = [(path, one) for path, one in feature.nested("") if isinstance(one, Media)]
    return [
        (path, type(one), [getattr(one, n) for n in _DECODERS.get(type(one), FieldDecoder).options])
        for path, one in some
    ]
