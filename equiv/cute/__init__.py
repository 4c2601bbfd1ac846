"""CuTe DSL kernels: the candidates, and device helpers they share."""
