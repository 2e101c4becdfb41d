"""Checkpoints with weights in NVFP4: logits are those of transformers' model with the numbers that
their codes stand for, and files are read as strictly as those of floats."""

import shutil
import weakref
from pathlib import Path

import interpreter
import nvfp4_files
import pytest
import torch
from checkpoint_files import edit_tensors, refusal
from safetensors.torch import load_file, save_file
from transformers import DiffusionGemmaForBlockDiffusion

from dlm.kernels.moe import matrix, moe_reference
from dlm.kernels.nvfp4 import NVFP4, dequantize, quantize_reference
from dlm.kernels.tiles import Tiles
from dlm.models import BackendError, CheckpointError, DiffusionGemma, checkpoint
from dlm.models.json_files import read_json
from dlm.models.nvfp4 import NVFP4Linear, NVFP4Weight

TOOLS = {"modelopt": nvfp4_files.MODELOPT, "compressed-tensors": nvfp4_files.COMPRESSED}
SIZES = {"hidden_size": 64, "moe_intermediate_size": 48, "intermediate_size": 128}
EXPERT = "model.decoder.layers.1.experts.2"
ATTENTION = "model.decoder.layers.0.self_attn"


class File:
    """A directory, and the numbers that its quantised tensors stand for."""

    def __init__(self, directory: Path, meant: dict[str, torch.Tensor]):
        self.directory, self.meant = directory, meant


@pytest.fixture(scope="module")
def floats(reference, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("floats")
    reference.make(directory, **SIZES)
    return directory


@pytest.fixture(scope="module", params=TOOLS)
def written(request, floats, tmp_path_factory) -> File:
    """Return a file of either tool, which no test changes."""
    directory = shutil.copytree(floats, tmp_path_factory.mktemp("written") / "it")
    return File(directory, nvfp4_files.write(directory, TOOLS[request.param]))


@pytest.fixture
def modelopt(floats, tmp_path) -> Path:
    """Return a directory of ModelOpt, which a test may change."""
    directory = Path(shutil.copytree(floats, tmp_path / "modelopt"))
    nvfp4_files.write(directory, nvfp4_files.MODELOPT)
    return directory


@pytest.fixture
def compressed(floats, tmp_path) -> Path:
    """Return a directory of compressed-tensors, which a test may change."""
    directory = Path(shutil.copytree(floats, tmp_path / "compressed"))
    nvfp4_files.write(directory, nvfp4_files.COMPRESSED)
    return directory


def decoded(model: DiffusionGemma, floats: Path) -> DiffusionGemma:
    """Return a model of floats with the numbers of a quantised one."""
    plain = checkpoint.load(floats)
    for name, module in model.named_modules():
        path, _, last = name.rpartition(".")
        if isinstance(module, NVFP4Weight) and path.endswith("experts"):
            stack = [matrix(module.value, e) for e in range(len(module.packed))]
            plain.get_submodule(path).get_parameter(last).copy_(torch.stack(stack))
        elif isinstance(module, NVFP4Weight):
            plain.get_submodule(path).get_parameter("weight").copy_(dequantize(module.value))
    return plain


def logits_of(model: DiffusionGemma, reference) -> torch.Tensor:
    """Return logits of the second pass over two canvases, each after a prompt."""
    rng = torch.Generator().manual_seed(3)
    cache = model.new_cache(2)
    model.encode([reference.draw(rng, n).tolist() for n in (20, 3)], cache, [0, 1])
    canvas = reference.draw(rng, 2, reference.CANVAS)
    soft = torch.stack([model.no_soft_embedding()] * 2)
    logits = model.denoise(canvas, soft, cache, [0, 1])
    return model.denoise(canvas, reference.soft_embedding(model, logits), cache, [0, 1])


def test_logits_are_those_of_transformers_with_the_numbers_that_files_stand_for(
    written, floats, reference, rng
):
    theirs = DiffusionGemmaForBlockDiffusion.from_pretrained(floats)
    assert len(written.meant) >= 2 * len(reference.KINDS)  # gate and up, down, in each layer
    assert not theirs.load_state_dict(written.meant, strict=False).unexpected_keys
    model = checkpoint.load(written.directory)
    prompt, canvas = reference.draw(rng, 30), reference.draw(rng, reference.CANVAS)
    reference.assert_parity(model, theirs, prompt.tolist(), canvas, steps=2)


@pytest.mark.filterwarnings("ignore")
def test_the_numbers_of_compressed_tensors_own_compressor_are_read(floats, tmp_path):
    """Optional: `pip install compressed-tensors loguru psutil`."""
    base = pytest.importorskip("compressed_tensors.compressors.nvfp4.base")
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
    from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam

    scheme = preset_name_to_scheme("NVFP4", targets=["Linear"])
    meant, new = {}, {}

    def compress(path: str, matrix: torch.Tensor) -> torch.Tensor:
        """Add the compressor's tensors of a matrix, and return the numbers of its own decoder."""
        divisor = generate_gparam(matrix.min(), matrix.max())
        blocks = matrix.unflatten(-1, (-1, 16))
        ranges = blocks.amin(-1), blocks.amax(-1)
        scale, _ = calculate_qparams(*ranges, scheme.weights, global_scale=divisor)
        tensors = {"weight": matrix, "weight_scale": scale, "weight_global_scale": divisor}
        made = base.NVFP4PackedCompressor.compress(tensors, scheme)
        new.update({f"{path}.{name}": tensor for name, tensor in made.items()})
        numbers = unpack_fp4_from_uint8(made["weight_packed"], *matrix.shape, dtype=torch.float32)
        return numbers * (made["weight_scale"].float() / divisor).repeat_interleave(16, 1)

    for name, tensor in load_file(floats / "model.safetensors").items():
        path, _, last = name.rpartition(".")
        if ".experts." not in name:
            new[name] = tensor
            continue
        names = ("gate_proj", "up_proj") if last == "gate_up_proj" else ("down_proj",)
        halves = [
            compress(f"{path}.{e}.{part}", half)
            for e, whole in enumerate(tensor)
            for part, half in zip(names, whole.chunk(len(names)), strict=True)
        ]
        meant[name] = torch.cat(halves).view(tensor.shape)
    directory = Path(shutil.copytree(floats, tmp_path / "compressed"))
    save_file(new, directory / "model.safetensors", metadata={"format": "pt"})
    nvfp4_files.edit_config(directory, nvfp4_files.COMPRESSED)

    model = checkpoint.load(directory)
    for name, numbers in meant.items():
        stack = model.get_submodule(name.removeprefix("model.decoder.")).value
        decoded = torch.stack([matrix(stack, e) for e in range(len(numbers))])
        torch.testing.assert_close(decoded, numbers, rtol=3e-7, atol=0)  # a few roundings apart


def test_dense_layers_are_four_bits_only_where_the_file_has_them(written):
    model = checkpoint.load(written.directory)
    linear = [module for module in model.modules() if isinstance(module, NVFP4Linear)]
    dense = any("mlp" in name for name in written.meant)
    assert len(linear) == (12 if dense else 0)
    assert ("nvfp4" in model.backends) == dense
    assert all(isinstance(layer.experts.gate_up_proj, NVFP4Weight) for layer in model.layers)


def test_a_layer_of_floats_beside_quantised_ones_is_read(floats, tmp_path, reference):
    directory = Path(shutil.copytree(floats, tmp_path / "mixed"))
    nvfp4_files.write(directory, nvfp4_files.MODELOPT, skip="model.decoder.layers.1.")
    model = checkpoint.load(directory)
    four_bit = [isinstance(layer.experts.down_proj, NVFP4Weight) for layer in model.layers]
    assert four_bit == [True, False, True, True]
    assert torch.equal(logits_of(model, reference), logits_of(decoded(model, floats), reference))


def test_only_floats_have_the_requested_type(written):
    model = checkpoint.load(written.directory, dtype=torch.bfloat16)
    kinds = {name: tensor.dtype for name, tensor in model.state_dict().items()}
    for name, dtype in kinds.items():
        last = name.rpartition(".")[2]
        expected = {"packed": torch.uint8, "scale_2": torch.float32, "input_scale": torch.float32}
        if last == "scale" and "router" not in name:
            expected["scale"] = torch.float8_e4m3fn
        assert dtype == expected.get(last, torch.bfloat16), name
    assert model.layers[0].self_attn.k_scale.dtype == torch.float32


@pytest.mark.parametrize("suffix", ["weight", "weight_scale", "weight_scale_2"])
@pytest.mark.parametrize("projection", ["gate_proj", "up_proj", "down_proj"])
def test_a_missing_tensor_of_a_matrix_is_named(modelopt, projection, suffix):
    name = f"{EXPERT}.{projection}.{suffix}"
    edit_tensors(modelopt, lambda tensors: tensors.pop(name))
    assert f"config.json: {name} is missing, expected in shape [" in refusal(modelopt)


@pytest.mark.parametrize(
    "name",
    [
        "model.decoder.layers.1.experts.4.up_proj.weight",  # one expert too many
        f"{EXPERT}.gate_proj.bias",
        f"{EXPERT}.gate_up_proj.weight",
        f"{EXPERT}.up_proj.weight_packed",  # the other tool's name
        f"{EXPERT}.up_proj.input_global_scale",
        "model.decoder.layers.1.experts.gate_up_proj",  # floats, where the file has four bits too
        f"{ATTENTION}.k_scale",
        f"{ATTENTION}.q_proj.k_scale",
    ],
)
def test_a_tensor_without_a_place_is_named(modelopt, name):
    edit_tensors(modelopt, lambda tensors: tensors.update({name: torch.ones(())}))
    assert refusal(modelopt).endswith(f"config.json: {name} is no tensor of this architecture")


@pytest.mark.parametrize(
    ("suffix", "tensor", "message"),
    [
        ("weight", torch.zeros(48, 64).byte(), "has shape [48, 64], expected [48, 32]"),
        ("weight", torch.zeros(48, 32), "is of torch.float32, expected torch.uint8"),
        ("weight_scale", torch.zeros(48, 4), "is of torch.float32, expected torch.float8_e4m3fn"),
        ("weight_scale", torch.zeros(4, 48).to(torch.float8_e4m3fn), "has shape [4, 48], expected"),
        ("weight_scale_2", torch.ones(2), "has shape [2], expected []"),
        ("weight_scale_2", torch.ones(()).half(), "is of torch.float16, expected torch.float32"),
        ("weight_scale_2", torch.tensor(torch.nan), "cannot be a scale: it is nan"),
        ("input_scale", torch.ones(4), "has shape [4], expected []"),
    ],
)
def test_a_tensor_of_another_shape_or_type_is_named_with_both(modelopt, suffix, tensor, message):
    name = f"{EXPERT}.gate_proj.{suffix}"
    edit_tensors(modelopt, lambda tensors: tensors.update({name: tensor}))
    assert f"{name} {message}" in refusal(modelopt)


def test_a_divisor_of_zero_is_no_scale(compressed):
    name = f"{EXPERT}.up_proj.weight_global_scale"
    edit_tensors(compressed, lambda tensors: tensors.update({name: torch.zeros(1)}))
    assert f"{name} cannot be a scale: one over it is inf" in refusal(compressed)


def test_without_a_quantisation_in_the_config_its_tensors_are_unknown(modelopt):
    nvfp4_files.edit_config(modelopt, None)
    first = "model.decoder.layers.0.experts.0.down_proj.input_scale"
    assert f"{first} is no tensor of this architecture" in refusal(modelopt)


def test_rows_that_do_not_fill_whole_blocks_are_refused(modelopt, reference):
    reference.edit_config(modelopt, moe_intermediate_size=40)
    assert "NVFP4 has blocks of 16 numbers, and rows of 40 are none" in refusal(modelopt)


def test_the_older_config_of_modelopt_is_read(modelopt):
    nvfp4_files.edit_config(modelopt, None)
    (modelopt / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    model = checkpoint.load(modelopt)
    assert isinstance(model.layers[0].experts.down_proj, NVFP4Weight)


def test_scales_of_an_fp8_cache_are_read_and_are_one_by_default(modelopt, floats):
    full = "model.decoder.layers.1.self_attn"
    scales = {
        f"{ATTENTION}.k_proj.k_scale": torch.tensor(0.25),
        f"{ATTENTION}.v_proj.v_scale": torch.tensor([3.0]),
        f"{full}.k_proj.k_scale": torch.tensor(
            0.5
        ).half(),  # this layer has no projection of values
    }
    for directory in (modelopt, floats):
        model = checkpoint.load(directory, dtype=torch.bfloat16)
        assert [float(s) for layer in model.layers for s in scales_of(layer)] == [1.0] * 8
    edit_tensors(modelopt, lambda tensors: tensors.update(scales))
    model = checkpoint.load(modelopt)
    assert [scales_of(layer) for layer in model.layers[:3]] == [(0.25, 3.0), (0.5, 1.0), (1.0, 1.0)]
    assert not any("k_scale" in name for name in model.state_dict())


def scales_of(layer) -> tuple[float, float]:
    return float(layer.self_attn.k_scale), float(layer.self_attn.v_scale)


def test_compressed_tensors_names_scales_of_a_cache_after_the_attention(compressed):
    edit_tensors(
        compressed, lambda tensors: tensors.update({f"{ATTENTION}.v_scale": torch.tensor([0.5])})
    )
    assert scales_of(checkpoint.load(compressed).layers[0]) == (1.0, 0.5)


def test_one_tensor_of_a_file_is_in_memory_at_a_time(written, monkeypatch):
    alive: list[weakref.ref] = []
    put = checkpoint._put

    def watched(path, name, tensor, *more):
        assert not [ref for ref in alive if ref() is not None]
        alive.append(weakref.ref(tensor))
        put(path, name, tensor, *more)

    monkeypatch.setattr(checkpoint, "_put", watched)
    checkpoint.load(written.directory)
    assert len(alive) > 50


def test_no_weight_is_read_from_a_file_that_does_not_fit(modelopt, monkeypatch):
    edit_tensors(modelopt, lambda tensors: tensors.pop(f"{EXPERT}.up_proj.weight"))
    monkeypatch.setattr(checkpoint, "_fill", lambda *_: pytest.fail("weights were read"))
    assert "is missing" in refusal(modelopt)
    with pytest.raises(BackendError):
        checkpoint.load(modelopt, kernels="triton")  # fp32 is refused before the file is


def test_four_bit_activations_round_the_inputs_of_dense_matrices(compressed):
    model = checkpoint.load(compressed, activation_bits=4)
    layer = model.layers[0].mlp.gate_proj
    x = torch.randn(3, 5, 64, generator=torch.Generator().manual_seed(0))
    rounded = dequantize(quantize_reference(x.flatten(0, 1), layer.input_scale))
    expected = (rounded @ dequantize(layer.weight.value).T).view(3, 5, 128)
    torch.testing.assert_close(layer(x), expected)
    assert (layer(x) - x @ dequantize(layer.weight.value).T).abs().max() > 0.01
    name = "model.decoder.layers.0.mlp.gate_proj.input_global_scale"
    edit_tensors(compressed, lambda tensors: tensors.pop(name))
    assert f"{name} is missing" in refusal(compressed, activation_bits=4)
    assert torch.isnan(checkpoint.load(compressed).layers[0].mlp.gate_proj.input_scale)


def test_four_bit_activations_round_the_inputs_of_experts(written, rng):
    """Experts of a layer share a scale, the largest in the file."""
    model = checkpoint.load(written.directory, activation_bits=4)
    experts = model.layers[0].experts
    x, (weight, expert) = torch.randn(7, 64, generator=rng), (torch.rand(7, 2), torch.arange(14))
    expert = (expert % experts.experts).view(7, 2)
    stacks = experts.gate_up_proj.value, experts.down_proj.value
    expected = moe_reference(x, weight, expert, *stacks, experts.input_scale)
    torch.testing.assert_close(experts(x, weight, expert), expected)
    rough = checkpoint.load(written.directory).layers[0].experts(x, weight, expert)
    assert (rough - expected).norm() > 0.01 * expected.norm()
    ours = {
        name: 1 / scale if name.endswith("global_scale") else scale
        for name, scale in load_file(written.directory / "model.safetensors").items()
        if "layers.0.experts" in name and ".input_" in name
    }
    down = [float(scale) for name, scale in ours.items() if ".down_proj." in name]
    rest = [float(scale) for name, scale in ours.items() if ".down_proj." not in name]
    assert len(rest) == 2 * len(down) == 2 * experts.experts
    assert experts.input_scale.tolist() == pytest.approx([max(rest), max(down)])


@pytest.mark.interpreted
def test_kernels_compute_experts_with_activations_of_four_bits(written, rng):
    """An error of a bit may become another code. The kernels' experts are padded."""
    interpreter.install()
    options = {"dtype": torch.bfloat16, "activation_bits": 4}
    plain = checkpoint.load(written.directory, kernels="torch", **options).layers[0].experts
    experts = checkpoint.load(written.directory, kernels="triton", **options).layers[0].experts
    assert isinstance(experts.gate_up_proj.value, NVFP4)
    assert not experts.order_of_tiles
    x, weight = torch.randn(9, 64, generator=rng).bfloat16(), torch.rand(9, 2, generator=rng)
    expert = torch.rand(9, experts.experts, generator=rng).argsort(-1)[:, :2].contiguous()
    expected = plain(x, weight, expert).float()
    for found in (experts(x, weight, expert), experts.by_kernels(x, weight, expert).sum(1)):
        assert (found.float() - expected).norm() < 0.02 * expected.norm()


def test_experts_without_scales_for_their_activations_are_refused(modelopt):
    name = f"{EXPERT}.down_proj.input_scale"
    edit_tensors(modelopt, lambda tensors: tensors.pop(name))
    assert f"{name} is missing" in refusal(modelopt, activation_bits=4)
    assert checkpoint.load(modelopt).layers[0].experts.input_scale is None


def test_four_bit_activations_are_refused_without_layers_in_nvfp4(floats):
    with pytest.raises(
        BackendError, match="for layers, or both stacks of experts, in NVFP4: there are none"
    ):
        checkpoint.load(floats, activation_bits=4)


def test_a_quantised_model_is_not_written_as_one_of_floats(written, tmp_path):
    config = read_json(written.directory / "config.json")
    with pytest.raises(CheckpointError, match="only models of floats"):
        checkpoint.save(checkpoint.load(written.directory), tmp_path / "out", config, {})
    assert not (tmp_path / "out").exists()


@pytest.mark.interpreted
@pytest.mark.parametrize("four_bit", [False, True], ids=["floats", "nvfp4"])
def test_experts_by_kernels_are_within_rounding_of_torch_s(four_bit, written, floats, rng):
    """Experts of 48 numbers, in bf16, are padded to 64. Each rounding has an error of 2^-9 at most,
    and there are three in a row. (In whole models rounding may change a router's choice.)"""
    interpreter.install()
    directory = written.directory if four_bit else floats
    by_torch, by_triton = (
        checkpoint.load(directory, dtype=torch.bfloat16, kernels=kernels)
        for kernels in ("torch", "triton")
    )
    assert by_torch.backends["experts"] == "torch"
    assert by_triton.backends["experts"] == "triton"
    x = torch.randn(40, 64, generator=rng).bfloat16()
    exact = checkpoint.load(directory)
    for some in zip(by_torch.layers, by_triton.layers, exact.layers, strict=True):
        chosen = some[0].router(x)
        one, other = (layer.experts(x, *chosen) for layer in some[:2])
        y = some[2].experts(x.float(), *chosen)
        assert (other - y).norm() < 3 * 2**-9 * y.norm()
        assert not torch.equal(one, other)


@pytest.mark.exhaustive
@pytest.mark.interpreted
def test_a_model_by_kernels_is_within_rounding_of_torch_s(written, reference, tmp_path):
    """Every token chooses all experts, as rounding could change a choice. Observed: both have an
    error of 4 % against fp32."""
    interpreter.install()
    directory = Path(shutil.copytree(written.directory, tmp_path / "all"))
    reference.edit_config(directory, top_k_experts=4)
    half = {"dtype": torch.bfloat16}
    model = checkpoint.load(directory, **half, kernels="triton")
    linear = [module for module in model.modules() if isinstance(module, NVFP4Linear)]
    assert {module.backend for module in linear} <= {"triton"}
    exact, by_torch, by_triton = (
        logits_of(each, reference)
        for each in (checkpoint.load(directory), checkpoint.load(directory, **half), model)
    )
    assert 0 < (by_triton - exact).norm() < 1.5 * (by_torch - exact).norm()
    assert (by_torch - exact).norm() < 0.1 * exact.norm()


@pytest.mark.interpreted
@pytest.mark.parametrize("shape", [(5,), (2, 3)])
def test_a_linear_layer_by_kernels_may_have_any_number_of_outputs_and_batch_axes(shape, rng):
    interpreter.install()
    layer = NVFP4Linear(128, 70)
    w = quantize_reference(torch.randn(70, 128, generator=rng))
    layer.weight.packed, layer.weight.scale, layer.weight.scale_2 = w
    x = torch.randn(*shape, 128, generator=rng).bfloat16()
    expected = layer(x)

    layer.backend = "triton"
    layer.prepare()
    assert isinstance(layer.weight.value, Tiles)

    torch.testing.assert_close(layer(x), expected)


@pytest.mark.interpreted
@pytest.mark.parametrize("bits", [4, 16])
def test_dense_matrices_are_in_tiles_only_for_activations_of_16_bits(bits, compressed):
    options = {"dtype": torch.bfloat16, "kernels": "triton", "activation_bits": bits}
    model = checkpoint.load(compressed, **options)
    linear = [module for module in model.modules() if isinstance(module, NVFP4Linear)]
    assert linear
    for module in linear:
        assert isinstance(module.weight.value, Tiles if bits == 16 else NVFP4)
