"""Which files of this folder hold no tests."""

collect_ignore = ["real_mlcroissant.py"]
"""A program that runs with packages that are not installed here."""
