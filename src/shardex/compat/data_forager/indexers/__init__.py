"""Indexers: they find or make samples, and store where each lies."""
