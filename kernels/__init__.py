"""Triton kernels, each beside the torch reference that defines it: `from dlm.kernels.X import ...`.

A launcher runs its kernel on GPUs. Its parameter `by_kernel` overrides the device: a kernel runs on
the CPU if it is interpreted, which takes `TRITON_INTERPRET=1` in the environment before its file is
imported.

This file exports nothing on purpose: from a checkout's root, transformers takes this folder for a
package called `kernels`, and reads its version.
"""
