"""The command that quantises: what it writes is a model for `generate.py`."""

import json

import jsonschema
import pytest
from invoices import PROMPT, SCHEMA, SCHEMA_FILE

from dlm.cli import generate, quantize
from dlm.engine import BUILT_IN


def test_a_quantised_model_generates_what_a_schema_demands(tmp_path, run_command):
    model = tmp_path / "out"
    code, out, err = run_command(quantize, "--model", BUILT_IN, "--out", model, "--canvases", 1)
    assert (code, err) == (0, "")
    assert f"{model}: 13,857,360 bytes of weights, 89% of 15,509,552" in out
    code, out, err = run_command(
        generate, "--model", model, "--stats", "--schema", SCHEMA_FILE, PROMPT
    )
    assert code == 0, err
    jsonschema.validate(json.loads(out), SCHEMA)
    assert "experts by torch" in err


@pytest.mark.parametrize(
    ("model", "more", "problem"),
    [
        ("", [], "quantize.py: EMPTY holds no config.json: not a model directory\n"),
        (BUILT_IN, ["--device", "moon"], "device 'moon' is not available here; use cpu"),
        (BUILT_IN, ["--out", "/dev/null/out"], "/dev/null/out"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(tmp_path, refusal_of, model, more, problem):
    """An empty `model` stands for an empty directory."""
    args = "--model", model or tmp_path, "--out", tmp_path / "out", "--canvases", 0
    assert problem.replace("EMPTY", str(tmp_path)) in refusal_of(quantize, *args, *more)


def test_a_place_that_cannot_be_written_is_found_before_any_work(tmp_path, refusal_of, monkeypatch):
    monkeypatch.setattr(
        "dlm.models.diffusion_gemma.quantisation.denoise_and_encode",
        lambda *_: pytest.fail("it calibrates"),
    )
    args = "--model", BUILT_IN, "--out", "/dev/null/out", "--canvases", 1
    assert "/dev/null/out" in refusal_of(quantize, *args)
