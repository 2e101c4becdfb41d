"""The part of the build that pyproject.toml cannot express: an extension that may be missing."""

from setuptools import Extension, setup

_FILES = "walk trie rows states cells closure threads members words costs".split()

setup(
    ext_modules=[
        Extension(
            "dlm.grammar._walk",
            [f"grammar/_{name}.c" for name in _FILES],
            depends=["grammar/_shared.h", "grammar/_parser.h"],
            optional=True,  # without a compiler, numpy walks
            py_limited_api=True,
            extra_compile_args=["-O3", "-fvisibility=hidden"],
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
