"""SGLang's scheduler retracts no request of a diffusion model, as its source says.

If that changes, this test fails: constraints then have to follow a retracted request in a server.
"""

import ast
from importlib.util import find_spec
from pathlib import Path


def scheduler_methods() -> dict[str, str]:
    """Return the source of the methods of SGLang's scheduler, by their names."""
    spec = find_spec("sglang")
    assert spec is not None
    assert spec.origin is not None
    source = (Path(spec.origin).parent / "srt" / "managers" / "scheduler.py").read_text()
    (scheduler,) = (
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == "Scheduler"
    )
    functions = (node for node in scheduler.body if isinstance(node, ast.FunctionDef))
    return {node.name: ast.unparse(node) for node in functions}


def test_only_the_running_batch_is_retracted_and_no_diffusion_request_is_in_it():
    methods = scheduler_methods()
    callers = {name for name, text in methods.items() if ".retract_decode(" in text}
    assert callers == {"update_running_batch"}
    step = methods["get_next_batch_to_run"]
    assert "if self.dllm_config is not None and last_batch.reqs:" in step
    assert "reqs_to_exclude.update(last_batch.reqs)" in step
    assert "if not running_batch.is_empty() and (not running_batch.is_prefill_only):" in step
