"""JSON Lines, and `.json` files that hold one array: an index of lines, columns parsed by the kernel."""
