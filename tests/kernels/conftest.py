"""Where kernels are interpreted, the interpreter computes what a GPU does."""

import os

if os.environ.get("TRITON_INTERPRET") == "1":
    import interpreter

    interpreter.install()
