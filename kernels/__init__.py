"""Triton kernels, each beside the torch reference that defines it: `from dlm.kernels.X import ...`.

This file stays empty on purpose: from a checkout's root, transformers finds this folder where it
looks for a package called `kernels`, and reads its version.
"""
