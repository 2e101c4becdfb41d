"""The backend's compiler, which compiles nothing."""

from triton.backends.compiler import BaseBackend


class InterpretedBackend(BaseBackend):
    """Return options unchanged; with TRITON_INTERPRET=1 nothing else is called."""

    @staticmethod
    def supports_target(target):
        return target.backend == "cpu"

    def hash(self):
        return "interpreted"

    def parse_options(self, options):
        return options

    def add_stages(self, stages, options, language=None):
        raise RuntimeError("kernels are interpreted here: set TRITON_INTERPRET=1")

    def load_dialects(self, context):
        """Load nothing, since nothing is compiled."""

    def get_module_map(self):
        return {}
