"""A Triton backend for machines without a GPU: it compiles nothing, and kernels are interpreted."""
