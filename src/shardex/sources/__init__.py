"""The sources, one file each: local folders and memory."""
