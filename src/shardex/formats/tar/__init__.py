"""WebDataset tars: an index of members, fields decoded by their extension."""
