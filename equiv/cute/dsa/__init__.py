"""CuTe DSL kernels of the DSA indexer."""
