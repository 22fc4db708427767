"""Text files, by lines or as whole documents."""
