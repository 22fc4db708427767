"""The sources, one file each: local folders, memory, and what lies elsewhere, with its addresses and keys."""
