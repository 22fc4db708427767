"""`.npy` files: rows of arrays, or windows of them."""
