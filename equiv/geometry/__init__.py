"""Sizes that an operator fixes, one module an operator; plain constants that kernels, layouts and models share."""
