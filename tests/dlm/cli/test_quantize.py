"""The command that quantises: what it writes is a model for `generate.py`."""

import json
import signal
import sys
from pathlib import Path

import jsonschema
import pytest
from commands import ended

import dlm.models
from dlm.cli import generate, quantize

ROOT = Path(__file__).parents[3]
TINY = Path(dlm.models.__file__).parent / "tiny"
SCHEMA = ROOT / "examples" / "invoice.json"
PROMPT = (
    "Extract invoice_id, customer, total, paid as JSON. "
    "Invoice AK-4071 for Silver Robotics came to 218.50 euros and has been paid."
)


def run(monkeypatch, *args: str) -> None:
    monkeypatch.setattr(sys, "argv", ["quantize.py", *args])
    quantize.main()


def test_a_quantised_model_generates_what_a_schema_asks_for(tmp_path, monkeypatch, capsys):
    out = str(tmp_path / "out")
    run(monkeypatch, "--model", str(TINY), "--out", out, "--canvases", "1")
    assert f"{out}: 13,857,360 bytes of weights, 89% of 15,509,552" in capsys.readouterr().out
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest has its own
    code = ended(monkeypatch, generate, "--model", out, "--stats", "--schema", SCHEMA, PROMPT)
    said = capsys.readouterr()
    assert code == 0, said.err
    jsonschema.validate(json.loads(said.out), json.loads(SCHEMA.read_text()))
    assert "experts by torch" in said.err


def test_what_cannot_be_quantised_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, "--model", str(tmp_path), "--out", str(tmp_path / "out"))
    assert end.value.code == 2
    problem = f"quantize.py: {tmp_path} holds no config.json: not a model directory\n"
    assert capsys.readouterr().err == problem
    for more, problem in ((["--device", "moon"], "device is 'moon', which there is not"), ([], "")):
        with pytest.raises(SystemExit) as end:
            run(monkeypatch, "--model", str(TINY), "--out", "/dev/null/out", *more)
        said = capsys.readouterr().err
        assert (end.value.code, said.count("\n"), problem in said) == (2, 1, True)
