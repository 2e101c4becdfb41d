"""Triton kernels, each beside the torch reference that defines it: `from dlm.kernels.X import ...`.

This file exports nothing on purpose: from a checkout's root, transformers takes this folder for a
package called `kernels`, and reads its version.
"""
