"""The formats, one module each: recognise, open as rows, create."""
