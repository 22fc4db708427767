"""Arrow IPC files and streams of other tools: read in place, and written with a given Arrow schema."""
