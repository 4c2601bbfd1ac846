"""A slow second engine in Python, and what the tracer builds on; see `engine`."""
