"""The backend of each operation is chosen once, can be read, and is the requested one."""

import pytest
import torch

from dlm.models import BackendError, backends
from dlm.models.backends import Dispatch, device_obstacle, padded

ROWS = {"experts": [128], "nvfp4": [128, 192]}
CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def gpu(monkeypatch):
    """Return a function that pretends there is a GPU of a compute capability."""

    def pretend(major: int, minor: int) -> torch.device:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (major, minor))
        return GPU

    return pretend


def chosen(device=CPU, dtype=torch.bfloat16, rows=ROWS, heads=(64, 512), **wanted):
    return Dispatch(device=device, dtype=dtype, **wanted).backends(rows, heads)


@pytest.mark.parametrize("sm", [(8, 0), (8, 9), (9, 0), (10, 0), (12, 0)])
def test_a_gpu_runs_kernels_unless_torch_is_requested(gpu, sm):
    device = gpu(*sm)
    everything = dict.fromkeys(("experts", "nvfp4", "attention", "layers", "vocabulary"), "triton")
    assert chosen(device) == everything
    assert chosen(device, kernels="triton") == chosen(device)
    assert set(chosen(device, kernels="torch").values()) == {"torch"}


@pytest.mark.interpreted
def test_a_cpu_runs_torch_even_where_kernels_could_be_interpreted():
    assert device_obstacle(CPU) is None
    assert set(chosen().values()) == {"torch"}
    assert chosen(kernels="triton")["experts"] == "triton"


def test_each_operation_has_its_own_backend(gpu):
    rows = {"experts": [128], "nvfp4": [128, 96]}
    found = chosen(gpu(9, 0), rows=rows, heads=[64, 24])
    assert found == {
        "experts": "triton",
        "nvfp4": "torch",
        "attention": "torch",
        "layers": "triton",
        "vocabulary": "triton",
    }


@pytest.mark.parametrize(
    ("sm", "wanted", "without", "why"),
    [
        ((7, 5), {}, ROWS, "experts: SM 7.5 is older than 8.0; nvfp4: SM 7.5"),
        ((9, 0), {"dtype": torch.float32}, ROWS, "are torch.float32, and kernels take bfloat16"),
        ((9, 0), {"rows": {"experts": [96]}}, ["experts"], "experts: rows of 96 numbers are no"),
        ((12, 0), {"heads": [64, 24]}, ["attention"], "attention: heads of 24 numbers are none of"),
    ],
)
def test_kernels_that_cannot_run_are_refused_if_requested_and_else_left_out(
    gpu, sm, wanted, without, why
):
    device = gpu(*sm)
    with pytest.raises(BackendError, match=r"kernels='triton' cannot run here: ") as error:
        chosen(device, **wanted, kernels="triton")
    assert why in str(error.value)
    left_out = chosen(device, **wanted)
    assert {left_out[name] for name in without} == {"torch"}


def test_an_old_triton_and_a_cpu_without_an_interpreter_are_named(monkeypatch):
    monkeypatch.setattr(backends.knobs.runtime, "interpret", False)
    with pytest.raises(BackendError, match="there is no GPU, and no TRITON_INTERPRET=1"):
        chosen(kernels="triton")
    monkeypatch.setattr(backends.triton, "__version__", "3.5.1")
    assert device_obstacle(GPU) == "Triton is 3.5.1, older than 3.6"
    assert device_obstacle(torch.device("mps")) is not None


def test_four_bit_activations_are_for_gpus_that_multiply_them(gpu):
    for sm in ((10, 0), (12, 0)):
        assert chosen(gpu(*sm), activation_bits=4)["nvfp4"] == "triton"
    for sm in ((9, 0), (10, 3), (12, 1)):  # launchers of `kernels` refuse these too
        message = rf"=4 takes a GPU of SM 10.0 and 12.0, this one is of SM {sm[0]}.{sm[1]}"
        with pytest.raises(BackendError, match=message):
            chosen(gpu(*sm), activation_bits=4)
    assert chosen(gpu(9, 0), activation_bits=4, kernels="torch")["nvfp4"] == "torch"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"kernels": "cuda"}, "kernels must be one of .*, got 'cuda'"),
        ({"activation_bits": 8}, "activation_bits must be 4 or 16, got 8"),
    ],
)
def test_unknown_options_are_refused(wanted, message):
    with pytest.raises(BackendError, match=message):
        Dispatch(**wanted)


def test_sizes_are_padded_to_whole_groups():
    assert [padded(size) for size in (1, 48, 64, 96, 704)] == [64, 64, 64, 128, 704]
