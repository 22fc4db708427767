"""Files of raw numbers as windows or as samples of stored lengths."""
