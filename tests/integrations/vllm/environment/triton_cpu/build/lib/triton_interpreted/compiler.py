"""The half that would compile."""

from triton.backends.compiler import BaseBackend


class InterpretedBackend(BaseBackend):
    """Takes options as they are; with TRITON_INTERPRET=1 nobody asks for more."""

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
        """Nothing is compiled: there are none."""

    def get_module_map(self):
        return {}
