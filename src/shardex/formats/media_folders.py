"""Which files of a folder are media, and what their names say: kind, class, caption, split. Pure functions of paths.

Images, audio and video are recognised by their extensions, in any case. Hidden files and what systems leave behind
(``.DS_Store``, ``__MACOSX/``) are no data. The package `folder` reads the files, and the tables beside them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from shardex.errors import ArgumentError, UnknownFormatError
from shardex.features import Audio, Feature, Image, Json, Media, Text, Video
from shardex.files import Files, list_folder, named_split
from shardex.formats.signatures import LIKELY, NO

_FEATURES: dict[str, Media] = {"image": Image(), "audio": Audio(), "video": Video()}
KINDS = {kind: tuple(f".{one}" for one in feature.file_extensions()) for kind, feature in _FEATURES.items()}
"""Extensions of each kind of media, in lower case."""
_KIND_OF = {extension: kind for kind, some in KINDS.items() for extension in some}
EXTENSIONS = tuple(_KIND_OF)

CAPTIONS: dict[str, tuple[str, Feature]] = {".txt": ("text", Text()), ".json": ("json", Json())}
"""For each extension of files beside media: the field that they become, and its feature."""
METADATA = ("metadata.jsonl", "metadata.csv")
"""Names of tables with more fields, in lower case."""
FILE_NAME = "file_name"
"""The column of such a table with the path of a file."""
LABELS = ("top", "parent", "path")
"""Values of the option `label`: the class of a file is its first folder, its last one, or all of them."""
_MASKS = ("masks", "labels", "annotations")
"""Names of folders beside ``images``, in lower case, that have another image for each image."""


def extension_of(path: str) -> str:
    """Return the extension in lower case.

    >>> extension_of("a.b/x.JPG"), extension_of(".hidden"), extension_of("a.b/c")
    ('.jpg', '', '')
    """
    return os.path.splitext(path)[1].lower()


def kind_of_name(path: str) -> str | None:
    """Return "image", "audio" or "video" for a media file, by its extension; None for others."""
    return _KIND_OF.get(extension_of(path))


def media_feature(kind: str) -> Feature:
    """Return the feature of a kind of media, with its default options."""
    return _FEATURES[kind]


def is_shown(path: str) -> bool:
    """Return whether a file is data: it is not hidden, and not in a hidden folder.

    >>> is_shown("_dogs/a.jpg"), is_shown("a/._b.jpg"), is_shown(".shardex/x"), is_shown("__MACOSX/a.jpg")
    (True, False, False, False)
    """
    return not path.startswith((".", "__MACOSX/")) and "/." not in path


def _has_hidden(paths: Sequence[str]) -> bool:
    """Return whether one of very many files may be hidden, faster than one by one."""
    every = "\n".join(("", *paths))
    return "\n." in every or "/." in every or "\n__MACOSX/" in every


def is_metadata(path: str) -> bool:
    """Return whether a file is a table with more fields of the media files."""
    return path.rpartition("/")[2].lower() in METADATA


@dataclass
class MediaFiles:
    """The files of a folder, by what they are for."""

    kinds: dict[str, list[str]] = field(default_factory=dict)
    """Media files of each kind."""
    captions: dict[str, dict[str, str]] = field(default_factory=dict)
    """For each extension of captions: the path of a file by its path without extension."""
    tables: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, paths: Sequence[str]) -> MediaFiles:
        """Sort files by their names.

        >>> found = MediaFiles.of(["a.jpg", "a.txt", "b.JPG", "README.md", "metadata.csv"])
        >>> found.kinds, found.captions, found.tables, found.others
        ({'image': ['a.jpg', 'b.JPG']}, {'.txt': {'a': 'a.txt'}}, ['metadata.csv'], ['README.md'])
        """
        found, purpose = cls(), dict[str, str]()
        shown = list(filter(is_shown, paths)) if _has_hidden(paths) else paths
        ends = {path[path.rfind(".") :] for path in shown}
        if len(only := {_KIND_OF.get(end.lower()) for end in ends}) == 1 and (kind := only.pop()) is not None:
            found.kinds[kind] = list(shown)
            return found
        for path in shown:
            end = path[path.rfind(".") :]
            if end not in purpose:
                purpose[end] = _KIND_OF.get(end.lower(), end.lower())
            kind = purpose[end]
            if kind in KINDS:
                found.kinds.setdefault(kind, []).append(path)
            elif kind in CAPTIONS:
                found.captions.setdefault(kind, {})[path[: -len(end)]] = path
            else:
                (found.tables if is_metadata(path) else found.others).append(path)
        return found

    @property
    def media(self) -> list[str]:
        """Media files of all kinds."""
        return [path for some in self.kinds.values() for path in some]

    def chosen(self, where: str, kind: str | None) -> str:
        """Return the kind of media to open: `kind`, or the only one that there is."""
        if kind is not None and kind not in KINDS:
            raise ArgumentError(f"expected kind to be one of {', '.join(KINDS)}, got {kind!r}")
        if kind is not None and kind in self.kinds:
            return kind
        if kind is None and len(self.kinds) == 1:
            return next(iter(self.kinds))
        if not self.kinds and self.tables and not self.others:  # as a writer leaves it that got no samples
            return kind or "image"
        most = sorted(self.kinds, key=lambda name: -len(self.kinds[name]))
        counts = " and ".join(f"{len(self.kinds[name])} of {name} (such as {self.kinds[name][0]})" for name in most)
        if not self.kinds or kind is not None:
            wanted = ", ".join(KINDS[kind] if kind else sum(KINDS.values(), ()))
            others = f"; the first of {len(self.others)} others is {self.others[0]}" if self.others else ""
            raise UnknownFormatError(f"{where}: expected media files ({wanted}), got {counts or 'none'}{others}")
        pattern = os.path.join(where, f"**/*{extension_of(self.kinds[most[0]][0])}")
        raise UnknownFormatError(
            f'{where}: expected media files of one kind, got {counts}; choose with kind="{most[0]}", or name the files '
            f'by a pattern such as "{pattern}"'
        )

    def captions_of(self, media: Sequence[str]) -> dict[str, list[str | None]]:
        """Return for each extension of captions the path of the caption of each media file, None if it has none."""
        if not self.captions:
            return {}
        stems = [os.path.splitext(path)[0] for path in media]
        found = {extension: [some.get(stem) for stem in stems] for extension, some in sorted(self.captions.items())}
        return {extension: paths for extension, paths in found.items() if any(paths)}


# -- classes --------------------------------------------------------------------------------------------------------


def split_folders(where: str, paths: Sequence[str]) -> list[str]:
    """Return the first folders of media files if they are splits: two of them or more are names of splits.

    Files that are no media do not count; media files in other folders beside the splits are an error.

    >>> split_folders("d", ["train/cat/a.jpg", "val/cat/b.jpg", "README.md"])
    ['train', 'val']
    >>> split_folders("d", ["train/a.jpg", "extra/b.jpg"]), split_folders("d", ["train_a.jpg", "test_b.jpg"])
    ([], [])
    """
    media = MediaFiles.of(paths).media
    if not media:
        return []
    shared = _shared(media)
    first = dict.fromkeys([path[: path.find("/", len(shared)) + 1] or path for path in media])
    splits = {name: split for name in first if name[-1] == "/" and (split := named_split(name[len(shared) : -1]))}
    others = [name for name in first if name not in splits]
    if len(splits) < 2 or (others and len({*splits.values()}) < 2):
        return []
    found = [name[:-1] for name in splits]
    if others:
        names = {split: [name[:-1] for name in splits if splits[name] == split] for split in splits.values()}
        chosen = {split: some if len(some) > 1 else some[0] for split, some in names.items()}
        raise UnknownFormatError(
            f"{where}: expected media files only in the folders of splits ({', '.join(found)}), got others beside them "
            f"({_some(others)}); choose with sx.load_dataset({where!r}, data_files={chosen}), move the others, or "
            f'open all files as one dataset with sx.open({where!r}, label="top")'
        )
    return found


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def class_names(
    where: str, media: Sequence[str], label: str | bool | None, classes: Sequence[str] | None = None
) -> list[str] | None:
    """Return the name of the class of each file, by its folder; None without class folders.

    `label` is one of `LABELS`, False for no classes, and None for the first folders, if there are at least two, or if
    the first is one of `classes`.

    >>> class_names("d", ["cat/a.jpg", "dog/x/b.jpg"], None), class_names("d", ["cat/a.jpg"], None)
    (['cat', 'dog'], None)
    >>> class_names("d", ["a/cat/a.jpg", "b/cat/b.jpg"], "parent"), class_names("d", ["a/cat/a.jpg"], "path")
    (['cat', 'cat'], ['a/cat'])
    """
    if label is not None and label is not False and label not in LABELS:
        raise ArgumentError(f"expected label to be one of {', '.join(LABELS)}, False or None, got {label!r}")
    if label is False or not media:
        return None
    known = classes is not None and media[0].partition("/")[0] in classes
    if label is None and not known:
        _refuse_splits(where, media)
    inner = media if label is not None or known else _below_shared(media)
    bare = [number for number, path in enumerate(inner) if "/" not in path]
    if label is None and len(bare) == len(inner):
        return None
    if bare:
        lost = [media[number] for number in bare]
        raise UnknownFormatError(
            f"{where}: expected all files in folders of classes, or none, got {len(lost)} of {len(media)} outside of "
            f"them, such as {lost[0]}; open with label=False, or name the files by a pattern such as "
            f'"{os.path.join(where, _shared(media), "*/*")}"'
        )
    if label is None or label == "top":
        names = [path.partition("/")[0] for path in inner]
        if label is None:
            _refuse_masks(where, set(names))
        return names
    folders = [path.rpartition("/")[0] for path in inner]
    return folders if label == "path" else [folder.rpartition("/")[2] for folder in folders]


def _refuse_masks(where: str, names: set[str]) -> None:
    """Raise an error for folders that are those of images and of their masks by their names."""
    if len(names) == 2 and any({one.lower() for one in names} == {"images", masks} for masks in _MASKS):
        raise UnknownFormatError(
            f"{where}: expected folders of classes, got {' and '.join(sorted(names))}; open each of them, and join "
            'images with their masks (docs/media.md, "Masks"), or open with label="top" if these are classes'
        )


def classes_of_splits(splits: Iterable[Sequence[str]]) -> list[str]:
    """Return the names of the classes of several splits, given the paths of the files of each.

    >>> classes_of_splits([["cat/a.jpg", "dog/b.jpg", "README"], ["cat/c.jpg", "fox/c.jpg"], ["d.jpg"]])
    ['cat', 'dog', 'fox']
    """
    found = set[str]()
    for paths in splits:
        found |= class_folders(MediaFiles.of(paths).media)
    return sorted(found)


def class_folders(media: Sequence[str]) -> set[str]:
    """Return the first folders of files if there are at least two and all files are in them; otherwise none.

    >>> sorted(class_folders(["cat/a.jpg", "dog/b.jpg"])), class_folders(["cat/a.jpg", "b.jpg"])
    (['cat', 'dog'], set())
    """
    below = _below_shared(media) if media else ()
    first = {path.partition("/")[0] for path in below}
    return first if len(first) > 1 and all("/" in path for path in below) else set()


def _refuse_splits(where: str, media: Sequence[str]) -> None:
    if some := split_folders(where, media):
        raise UnknownFormatError(
            f"{where}: expected the files of one split, got the folders {', '.join(some)}; open one with "
            f'sx.open("{os.path.join(where, some[0])}"), all of them with sx.load_dataset("{where}"), or all files as '
            'one dataset with label="parent" or label=False'
        )


def _shared(media: Sequence[str]) -> str:
    """Return the folders that all files have in common, with a slash at the end.

    >>> _shared(["a/b/x.jpg", "a/b/c/y.jpg"]), _shared(["ab/x.jpg", "ac/y.jpg"])
    ('a/b/', '')
    """
    # What the first and the last path in order of characters share, those between them share too.
    pairs = zip(*(path.split("/")[:-1] for path in (min(media), max(media))), strict=False)
    return "".join(f"{one}/" for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _below_shared(media: Sequence[str]) -> Sequence[str]:
    above = len(_shared(media))
    return [path[above:] for path in media] if above else media


# -- recognising ----------------------------------------------------------------------------------------------------


def recognise(files: Files) -> int:
    """Recognise media files among the data files, or in linked folders."""
    if not files.extensions.isdisjoint(EXTENSIONS) and MediaFiles.of(files.data).kinds:
        return LIKELY
    return LIKELY if files.has_linked_folders and MediaFiles.of(list_folder(files).paths).kinds else NO
