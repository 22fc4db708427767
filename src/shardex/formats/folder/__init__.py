"""Folders of images, audio files or videos, with labels, captions and tables of more fields."""

from shardex.formats.folder.files import classes_of_splits, is_metadata, split_folders

__all__ = [
    "classes_of_splits",
    "is_metadata",
    "split_folders",
]
