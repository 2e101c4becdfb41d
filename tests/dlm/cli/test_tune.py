"""The command that times kernels, on the CPU: a double of the timer decides what is fastest."""

import json
import logging
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from nvfp4_files import COMPRESSED, MODELOPT
from triton.runtime.errors import OutOfResources

from dlm import DlmError, Engine
from dlm.cli import generate, tune
from dlm.engine import BUILT_IN
from dlm.kernels.configurations import FILE, GATE_UP, KERNELS, TunedFile
from dlm.kernels.gpus import Target
from dlm.loading import Loading
from dlm.models import ModelConfig
from dlm.models.families import DEFAULT
from dlm.models.json_files import read_json

CPU = torch.device("cpu")
EXAMPLES = Path(__file__).parents[3] / "examples"


def first_is_fastest(case, configuration) -> float:
    """A double of the timer. Nothing is launched."""
    candidates = list(case.candidates(CPU))
    return 1.0 + candidates.index(configuration)


@pytest.fixture
def tuned(run_command):
    """Run the command with a double of the timer; return its exit code, stdout and stderr."""

    def tuned(*args, measure=first_is_fastest):
        return run_command(tune, *args, main=partial(tune.main, measure))

    return tuned


@pytest.fixture
def model(tmp_path) -> Path:
    """A copy of the built-in model."""
    return Path(shutil.copytree(BUILT_IN, tmp_path / "model"))


def test_the_fastest_configuration_of_each_shape_is_written_beside_the_model_and_read_at_load(
    model, tuned
):
    code, out, err = tuned("--model", model, "--slots", "1,2", "--weights", "bf16")
    assert code == 0, err
    found = TunedFile.read(model / FILE)
    assert (found.card, found.sm) == ("cpu", 90)
    assert found.dlm.startswith("0.1.0")
    shapes = [(each.kernel, each.shape.get("slots")) for each in found.timings]
    config = ModelConfig.from_hf(read_json(model / "config.json"))
    rows = config.canvas_length * config.experts_per_token
    assert shapes == [
        *((name, n * rows) for name in ("gate_up", "down") for n in (1, 2)),
        ("vocabulary", None),
    ]
    for each in found.timings:
        candidates = KERNELS[each.kernel].candidates(9, each.shape)
        assert each.configuration == candidates[0]
        assert each.microseconds == 1.0
    assert "by rule, us" in out
    assert f"{model / FILE}: 5 shapes on cpu" in out

    engine = Engine.load(model, device="cpu")
    experts = engine.model.layers[0].experts
    assert experts.tuned is engine.model.tuned
    for each in found.timings:
        kernel = KERNELS[each.kernel]
        assert experts.tuned.choose(kernel, CPU, **each.shape) == each.configuration
        others = each.kernel != "vocabulary"  # whose rule is the first one
        assert (kernel.by_rule(Target(9, 1), each.shape) != each.configuration) == others
    engine.close()


def test_a_configuration_that_does_not_run_is_passed_over_and_a_kernel_that_does_not_is_named(
    model, tuned
):
    def measure(case, configuration, failing):
        if case.kernel is GATE_UP and configuration["BLOCK_N"] in failing:
            raise OutOfResources(300_000, 101_376, "shared memory")
        return first_is_fastest(case, configuration)

    args = "--model", model, "--slots", 1, "--weights", "bf16"
    assert tuned(*args, measure=partial(measure, failing={16})).code == 0
    found = {each.kernel: each.configuration for each in TunedFile.read(model / FILE).timings}
    assert found["gate_up"]["BLOCK_N"] == 32
    assert found["down"]["BLOCK_N"] == 16
    (model / FILE).unlink()
    code, _, err = tuned(*args, measure=partial(measure, failing={16, 32, 64}))
    assert code == 1
    assert "gate_up at {'bits': 16" in err
    assert "no configuration runs on this GPU: out of resource: shared memory" in err
    assert not (model / FILE).exists()


def test_by_default_the_shapes_are_the_26b_s(monkeypatch, tmp_path, tuned):
    config = ModelConfig.from_hf(read_json(EXAMPLES / "diffusiongemma-26b-a4b.json"))
    assert ModelConfig.from_hf(DEFAULT.reference) == config
    given = []
    monkeypatch.setattr(tune, "tuning_cases", lambda *args: given.append(args) or [])
    monkeypatch.chdir(tmp_path)
    assert tuned().code == 0
    assert given == [(config, "nvfp4", [1, 2, 4, 8, 16], 8192, CPU)]
    assert TunedFile.read(tmp_path / FILE).timings == []


@pytest.mark.parametrize(
    ("file", "content", "weights"),
    [
        (None, {}, "bf16"),
        ("config.json", {"quantization_config": MODELOPT}, "nvfp4"),
        ("config.json", {"quantization_config": COMPRESSED}, "nvfp4"),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4"}}, "nvfp4"),
    ],
)
def test_the_type_of_weights_is_that_of_the_model_s_directory_unless_it_is_given(
    file, content, weights, model, monkeypatch, tuned
):
    if file is not None:
        known = read_json(model / file) if (model / file).exists() else {}
        (model / file).write_text(json.dumps({**known, **content}))
    given = []
    monkeypatch.setattr(tune, "tuning_cases", lambda *args: given.append(args[1]) or [])
    tuned("--model", model)
    for kind in ("nvfp4", "bf16"):
        tuned("--model", model, "--weights", kind)
    tuned("--model", model / "config.json")
    assert given == [weights, "nvfp4", "bf16", "nvfp4"]


def test_a_directory_of_weights_that_are_not_read_is_one_line_and_exit_code_2(model, tuned):
    config = read_json(model / "config.json") | {"quantization_config": {"quant_method": "awq"}}
    (model / "config.json").write_text(json.dumps(config))
    code, _, err = tuned("--model", model)
    assert code == 2
    assert "quant_method 'awq' are not read" in err


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (
            ["--model", "/no/such/place"],
            "--model /no/such/place: there is no such directory or file",
        ),
        (["--slots", "0"], "must be numbers from 1 on"),
        (["--slots", "a,b"], "must be numbers from 1 on, such as 1,2,4, got 'a,b'"),
        (["--output", "/"], "--output /: no file can be written there"),
        (["--context", "-1"], "--context must be at least 0 tokens, got -1"),
        (["--output", "/no/such/file"], "there is no directory /no/such"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(args, problem, refusal_of):
    assert problem in refusal_of(tune, *args, main=partial(tune.main, first_is_fastest))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_timed(refusal_of):
    assert "there is no CUDA device whose kernels could be tuned" in refusal_of(tune)


def test_a_file_of_another_card_is_an_error_if_it_is_named_and_a_warning_if_it_is_found(
    model, tuned, refusal_of, caplog, tmp_path
):
    file = tmp_path / "one"
    assert tuned("--model", model, "--slots", 1, "--output", file).code == 0
    file.write_text(json.dumps(json.loads(file.read_text()) | {"card": "NVIDIA H200"}))
    problem = "is of another card: of NVIDIA H200, and this one is cpu"
    for load in (
        partial(Engine.load, model, device="cpu", tuned=file),
        partial(Engine.loaded, Loading(model=str(model), device="cpu", tuned=str(file))),
    ):
        with pytest.raises(DlmError, match=problem):
            load()
    assert problem in refusal_of(generate, "--tuned", file, "Hello")
    shutil.copy(file, model / FILE)
    with caplog.at_level(logging.WARNING, "dlm"):
        engine = Engine.load(model, device="cpu")
    (record,) = caplog.records
    assert record.getMessage() == f"kernels are not tuned: {model / FILE} {problem}"
    assert engine.model.tuned.fastest == {}
    engine.close()


@pytest.mark.gpu
def test_a_gpu_is_tuned_with_its_own_clock(model, tuned):
    assert tuned("--model", model, "--slots", 1, measure=None).code == 0
    found = TunedFile.read(model / FILE)
    assert found.card == torch.cuda.get_device_name()
    assert all(each.microseconds > 0 for each in found.timings)
