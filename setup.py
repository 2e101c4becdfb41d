"""The part of the build that pyproject.toml cannot express: an extension that may be missing."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "dlm.grammar._walk",
            [f"grammar/_{name}.c" for name in ("walk", "trie", "rows", "threads", "closure")],
            depends=["grammar/_shared.h"],
            optional=True,  # without a compiler, numpy walks
            py_limited_api=True,
            extra_compile_args=["-O3"],
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
