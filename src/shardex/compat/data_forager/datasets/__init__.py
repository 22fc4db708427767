"""Datasets: samples by their numbers."""
