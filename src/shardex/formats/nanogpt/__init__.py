"""Streams of tokens of nanoGPT, llm.c and modded-nanogpt."""
