"""The codecs, one module each, all with the same two verbs: `encode` and `decode`."""
