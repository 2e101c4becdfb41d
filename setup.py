"""The part of the build that pyproject.toml cannot express: an extension that may be missing."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "dlm.grammar._walk",
            ["grammar/_walk.c", "grammar/_trie.c", "grammar/_threads.c", "grammar/_closure.c"],
            optional=True,  # without a compiler, numpy walks
            py_limited_api=True,
            extra_compile_args=["-O3"],
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
