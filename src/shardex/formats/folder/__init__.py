"""Folders of images, audio files or videos, with labels, captions and tables of more fields."""
