"""`quantise` writes what ModelOpt writes: files that load, with nearly the logits of the floats."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

import dlm.models
from dlm.kernels.moe import matrix
from dlm.kernels.nvfp4 import quantize, tensor_scale
from dlm.models import CheckpointError, checkpoint, tensor_files
from dlm.models.diffusion_gemma.quantisation import input_scales
from dlm.models.experts import Experts
from dlm.models.quantise import quantise as quantise_directory
from dlm.models.tensor_files import tensors

TINY = Path(dlm.models.__file__).parent / "tiny"
MOST = 6 * 448  # the largest number times the largest scale of a block


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """Return the quantised built-in model, which no test changes."""
    out = tmp_path_factory.mktemp("quantised") / "tiny"
    quantise_directory(TINY, out, canvases=2)
    return out


def tensors_of(directory: Path) -> dict[str, Tensor]:
    return load_file(directory / "model.safetensors")


def bits(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


def expert_parts(name: str, stack: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return, by name, each matrix and the tensor that ModelOpt takes its scale from."""
    path, _, last = name.rpartition(".")
    names = ("gate_proj", "up_proj") if last == "gate_up_proj" else ("down_proj",)
    return {
        f"{path}.{e}.{part}": (half, whole)
        for e, whole in enumerate(stack)
        for part, half in zip(names, whole.chunk(len(names)), strict=True)
    }


def test_experts_become_nvfp4_and_other_tensors_are_copied(written):
    before, after = tensors_of(TINY), tensors_of(written)
    for name, tensor in before.items():
        if ".experts." not in name:
            assert same(after.pop(name), tensor), name
            continue
        for path, (half, whole) in expert_parts(name, tensor).items():
            w = quantize(half, tensor_scale(whole))
            assert same(after.pop(f"{path}.weight"), w.packed)
            assert same(after.pop(f"{path}.weight_scale"), w.scale)
            assert same(after.pop(f"{path}.weight_scale_2"), w.scale_2)
            assert after.pop(f"{path}.input_scale").shape == ()
    assert not after


def test_other_files_of_the_model_are_copied_and_its_config_declares_nvfp4(written):
    names = {path.name for path in written.iterdir()}
    assert names == {path.name for path in TINY.iterdir()}
    for name in names - {"config.json", "model.safetensors"}:
        assert (written / name).read_bytes() == (TINY / name).read_bytes()
    config = json.loads((written / "config.json").read_text())
    declared = config.pop("quantization_config")
    assert config == json.loads((TINY / "config.json").read_text())
    assert (declared["quant_method"], declared["quant_algo"]) == ("modelopt", "NVFP4")
    assert declared["config_groups"]["group_0"]["input_activations"]["group_size"] == 16


def logits_of(model: dlm.models.DiffusionGemma) -> Tensor:
    canvas = torch.randint(model.vocab_size, (1, 32), generator=torch.Generator().manual_seed(0))
    cache = model.new_cache(1)
    model.encode([[2, 105, *range(200, 240)]], cache, [0])
    logits = model.denoise(canvas, model.no_soft_embedding()[None], cache, [0])
    probabilities = model.softcapped(logits).softmax(-1)
    return model.denoise(canvas, model.soft_embedding(probabilities), cache, [0])


def test_logits_are_those_of_the_decoded_weights_and_near_those_of_the_floats(written):
    """Observed on these random tokens: an error of 7.6 % of the norm, and 1 other choice of 32."""
    model, plain = checkpoint.load(written), checkpoint.load(TINY)
    exact = logits_of(plain)
    for four_bit, floats in zip(model.layers, plain.layers, strict=True):
        for name in ("gate_up_proj", "down_proj"):
            stack = getattr(four_bit.experts, name).value
            numbers = torch.stack([matrix(stack, e) for e in range(model.config.experts)])
            parameter = floats.experts.get_parameter(name)
            assert 0.05 < (numbers - parameter).norm() / parameter.norm() < 0.12
            parameter.copy_(numbers)
    quantised = logits_of(model)
    assert torch.equal(quantised, logits_of(plain))
    assert 0 < (quantised - exact).norm() < 0.2 * exact.norm()
    assert (quantised.argmax(-1) == exact.argmax(-1)).float().mean() > 0.8


def test_input_scales_are_of_the_largest_activation_of_a_layer(written, monkeypatch):
    """Inputs of all matrices of experts are recorded while two canvases are denoised."""
    seen: dict[int, list[tuple[Tensor, Tensor]]] = {}
    forward = Experts.forward

    def spied(self, x, weight, expert):
        seen.setdefault(id(self), []).append((x, expert))
        return forward(self, x, weight, expert)

    monkeypatch.setattr(Experts, "forward", spied)
    model = checkpoint.load(TINY)
    input_scales(model, 2)
    found = tensors_of(written)
    for index, layer in enumerate(model.layers):
        gate_up = layer.experts.get_parameter("gate_up_proj")
        first, second = [], []
        for x, expert in seen[id(layer.experts)]:
            gate, up = torch.einsum("nh,nkih->nki", x, gate_up[expert]).chunk(2, -1)
            first.append(x.abs().max())
            second.append((F.gelu(gate, approximate="tanh") * up).abs().max())
        for e in range(model.config.experts):
            path = f"model.decoder.layers.{index}.experts.{e}"
            for name, largest in (("gate_proj", first), ("up_proj", first), ("down_proj", second)):
                scale = found[f"{path}.{name}.input_scale"]
                torch.testing.assert_close(scale * MOST, max(largest), rtol=1e-5, atol=0)


def test_without_canvases_there_are_no_scales_of_activations(tmp_path, written):
    quantise_directory(TINY, tmp_path / "out", canvases=0)
    declared = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert declared["quant_algo"] == "W4A16_NVFP4"
    assert "input_activations" not in declared["config_groups"]["group_0"]
    found = tensors_of(tmp_path / "out")
    assert {*tensors_of(written)} - {*found} == {n for n in tensors_of(written) if "input_s" in n}
    assert torch.equal(
        logits_of(checkpoint.load(tmp_path / "out")), logits_of(checkpoint.load(written))
    )


def test_large_checkpoints_are_written_in_shards(tmp_path, written, monkeypatch):
    monkeypatch.setattr(tensor_files, "SHARD", 1_000_000)
    quantise_directory(TINY, tmp_path / "out", canvases=0)
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert files == [
        f"model-{i:05}-of-{len(files):05}.safetensors" for i in range(1, len(files) + 1)
    ]
    assert len(files) == 19
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert {*index["weight_map"].values()} == {*files}
    assert index["metadata"]["total_size"] == sum(t.nbytes for _, t in tensors(tmp_path / "out"))
    assert torch.equal(
        logits_of(checkpoint.load(tmp_path / "out")), logits_of(checkpoint.load(written))
    )


def test_wrong_arguments_are_refused_before_anything_is_written(tmp_path, written, pair):
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    broken = Path(shutil.copytree(TINY, tmp_path / "broken"))
    (broken / "model.safetensors").unlink()
    for source, out, canvases, message in (
        (written, "out", 0, "must be a checkpoint of floats, and is quantised already"),
        (pair.directory, "out", 0, "its expert size 24 is no multiple of NVFP4's block, 16"),
        (broken, "out", 0, "holds neither model.safetensors nor"),
        (tmp_path / "none", "out", 0, "holds no config.json"),
        (TINY, "full", 0, "full is there and is no empty directory"),
        (TINY, "full/file", 0, "file is there and is no empty directory"),
        (TINY, "out", 65, "canvases is 65: the model takes 0 to 64"),
        (TINY, "out", -1, "canvases is -1"),
    ):
        with pytest.raises(CheckpointError, match=message):
            quantise_directory(source, tmp_path / out, canvases)
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore")
def test_modelopt_exports_the_same_file(tmp_path, written):
    """Optional: `pip install nvidia-modelopt requests omegaconf pulp scipy`. Scales of activations
    depend on the calibration: only their shapes are compared."""
    mtq = pytest.importorskip("modelopt.torch.quantization")
    from modelopt.torch.export import export_hf_checkpoint
    from transformers import DiffusionGemmaForBlockDiffusion

    model = DiffusionGemmaForBlockDiffusion.from_pretrained(TINY).eval()
    tokens = torch.randint(model.config.text_config.vocab_size, (1, 64))
    mtq.quantize(
        model,
        mtq.NVFP4_EXPERTS_ONLY_CFG,
        lambda model: model(input_ids=tokens, decoder_input_ids=tokens[:, :32]),
    )
    export_hf_checkpoint(model, export_dir=tmp_path / "theirs")
    ours, theirs = tensors_of(written), tensors_of(tmp_path / "theirs")
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        if name.endswith("input_scale"):
            assert (tensor.dtype, tensor.shape) == (theirs[name].dtype, theirs[name].shape)
        else:
            assert same(tensor, theirs[name]), name
    assert torch.equal(
        logits_of(checkpoint.load(tmp_path / "theirs")), logits_of(checkpoint.load(written))
    )
