"""Which files of this folder hold no tests."""

collect_ignore = ["real_atdata.py"]
"""A program for another Python, with packages that are not installed here."""
