"""Measured configurations are used at their shapes, and files that do not fit are refused."""

import json
import logging

import pytest
import torch
from launches import Launches
from moe_cases import prepared, quantized
from torch import Tensor

from dlm.kernels import attention as attention_kernels
from dlm.kernels import moe as moe_kernels
from dlm.kernels import tiles as tiles_kernels
from dlm.kernels import vocab as vocab_kernels
from dlm.kernels.attention import attention
from dlm.kernels.configurations import (
    ATTENTION,
    BY_RULE,
    DOWN,
    FILE,
    GATE_UP,
    HEADS,
    KERNELS,
    VOCABULARY,
    W4A16,
    Timing,
    Tuned,
    TunedError,
    TunedFile,
    file_of,
    tuned_for,
)
from dlm.kernels.gpus import Target
from dlm.kernels.moe import Stack, moe
from dlm.kernels.nvfp4 import NVFP4, quantize
from dlm.kernels.paging import CANVAS, Pages, Paging, Segment
from dlm.kernels.tiles import BY_SM, matmul_w4a16, tiled_matrix
from dlm.kernels.vocab import vocab_pass

CPU = torch.device("cpu")
SHAPES = {  # a shape of each kernel
    "gate_up": {"bits": 4, "slots": 20, "experts": 3, "rows": 64, "columns": 128},
    "down": {"bits": 16, "slots": 20, "experts": 3, "rows": 128, "columns": 64},
    "w4a16": {"rows": 5, "outputs": 64, "inputs": 128},
    "w4a4": {"rows": 5, "outputs": 64, "inputs": 128},
    "attention": {"head_dim": 256, "bytes": 1},
    "vocabulary": {"tokens": 700, "bytes": 2},
    "gate_up_w4a4": {"slots": 20, "experts": 3, "rows": 64, "columns": 128},
    "down_w4a4": {"slots": 20, "experts": 3, "rows": 128, "columns": 64},
}


def product(x: Tensor, w: NVFP4, tuned: Tuned) -> Tensor:
    return matmul_w4a16(x, tiled_matrix(w), by_kernel=True, rows=len(w.packed), tuned=tuned)


def test_a_product_has_its_measured_configuration_and_other_rows_have_one_by_rule(monkeypatch, rng):
    launches = Launches(monkeypatch, tiles_kernels, "_w4a16_kernel")
    w, shape = quantize(torch.randn(70, 128, generator=rng)), {"outputs": 70, "inputs": 128}
    other = W4A16.candidates(9, {})[-1]
    for rows in (20, 33):
        assert W4A16.by_rule(Target(9, 1), {"rows": rows, **shape}) != other
    tuned = Tuned.only(W4A16, {"rows": 32, **shape}, other)
    for rows in (20, 32, 33):
        product(torch.randn(rows, 128, generator=rng).bfloat16(), w, tuned)
    assert launches.have(other) == [True, True, False]
    another = quantize(torch.randn(64, 128, generator=rng))
    product(torch.randn(20, 128, generator=rng).bfloat16(), another, tuned)
    assert not launches.have(other)[-1], "this matrix has other outputs"


@pytest.mark.parametrize("kernel", [GATE_UP, DOWN], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("bits", [4, 16])
def test_experts_have_their_measured_configuration(bits, kernel, monkeypatch, rng):
    launches = {
        each.name: Launches(monkeypatch, moe_kernels, f"_{each.name}_kernel")
        for each in (GATE_UP, DOWN)
    }
    gate_up, down = (torch.randn(3, R, C, generator=rng) for R, C in ((128, 128), (128, 64)))
    stacks: list[Stack] = [gate_up.bfloat16(), down.bfloat16()]
    if bits == 4:
        stacks = [prepared(quantized(gate_up, 2)), prepared(quantized(down, 1))]
    x = torch.randn(10, 128, generator=rng).bfloat16()
    weight = torch.rand(10, 2, generator=rng)
    expert = torch.rand(10, 3, generator=rng).argsort(-1)[:, :2].contiguous()
    rows, columns = (64, 128) if kernel is GATE_UP else (128, 64)
    shape = {"bits": bits, "slots": 20, "experts": 3, "rows": rows, "columns": columns}
    last = kernel.candidates(9, shape)[-1]
    assert last != kernel.by_rule(Target(9, 1), shape)

    plain = moe(x, weight, expert, *stacks, by_kernel=True)
    y = moe(x, weight, expert, *stacks, by_kernel=True, tuned=Tuned.only(kernel, shape, last))

    assert torch.allclose(y.float(), plain.float(), rtol=0.02, atol=0.02)
    for name, each in launches.items():
        assert each.have(last) == [False, name == kernel.name]


def test_attention_has_its_measured_configuration(monkeypatch, rng):
    launches = Launches(monkeypatch, attention_kernels, "_attention_kernel")
    shape = {"head_dim": 256, "bytes": 2}
    by_rule, other = ATTENTION.candidates(9, shape)[:2]
    assert by_rule["BLOCK_M"] != other["BLOCK_M"]
    q = torch.randn(96, 2, 256, generator=rng).bfloat16() / 16
    k, v = torch.randn(2, 96, 1, 256, generator=rng).bfloat16()
    one, none = torch.ones(1), torch.empty(0, dtype=torch.int64)
    segments = (Segment(0, 96, 0, CANVAS, 0),)
    paging = Paging(
        segments=segments,
        numbers=torch.tensor(segments, dtype=torch.int32).T.contiguous(),
        table=torch.zeros(1, 1, dtype=torch.int32),
        rows=none,
        places=none,
    )
    pages = Pages(
        torch.zeros(1, 16, 1, 256).bfloat16(), torch.zeros(1, 16, 1, 256).bfloat16(), one, one
    )
    found = [
        attention(q, k, v, pages, paging, by_kernel=True, tuned=tuned)
        for tuned in (BY_RULE, Tuned.only(ATTENTION, shape, other))
    ]
    assert torch.allclose(*(each.float() for each in found), rtol=0.02, atol=0.02)
    assert launches.have(other) == [False, True]


def test_the_vocabulary_pass_has_its_measured_configuration(monkeypatch, rng):
    launches = Launches(monkeypatch, vocab_kernels, "_chunk_kernel")
    logits = (torch.randn(3, 9000, generator=rng) * 4).bfloat16()
    args = logits, torch.ones(3), torch.full((3,), 0.4)
    shape, plain = {"tokens": 9000, "bytes": 2}, vocab_pass(*args, by_kernel=True)
    for chunk in VOCABULARY.candidates(9, shape):
        tuned = Tuned.only(VOCABULARY, shape, chunk)
        found = vocab_pass(*args, by_kernel=True, tuned=tuned)
        assert launches.have(chunk)[-1]
        assert torch.equal(found.argmax, plain.argmax)
        assert torch.equal(found.ids, plain.ids)
        assert torch.allclose(found.entropy, plain.entropy, atol=1e-4)
    assert not all(launches.have(chunk))


def test_every_kernel_has_configurations_of_its_own_options_and_its_rule_chooses_one():
    assert SHAPES.keys() == KERNELS.keys()
    for name, kernel in KERNELS.items():
        shape = SHAPES[name]
        for sm in BY_SM:
            candidates = kernel.candidates(sm, shape)
            assert kernel.by_rule(Target(sm, 132), shape) in candidates
            assert len({tuple(kernel.numbers(each)) for each in candidates}) == len(candidates)
            for each in candidates:
                assert each.keys() == {*kernel.options}
                assert kernel.configuration(kernel.numbers(each)) == each
    for head_dim, size in HEADS:
        assert ATTENTION.candidates(12, {"head_dim": head_dim, "bytes": size})


@pytest.mark.parametrize(("rows", "key"), [(1, 16), (16, 16), (17, 32), (256, 256), (257, 512)])
def test_rows_of_a_shape_are_rounded_up_to_a_power_of_two(rows, key):
    assert W4A16.key({"rows": rows, "outputs": 70, "inputs": 192}) == (key, 70, 192)


def test_a_shape_of_other_axes_is_refused():
    with pytest.raises(ValueError, match="w4a16 has rows, outputs, inputs, got rows"):
        W4A16.key({"rows": 1})


def file_content(**changes) -> dict:
    """Return a file of this device, in which all configurations are the last candidates."""
    timings = [
        Timing(
            kernel=name,
            shape=shape,
            configuration=KERNELS[name].candidates(9, shape)[-1],
            microseconds=1.5,
        )
        for name, shape in SHAPES.items()
    ]
    file = TunedFile(
        card="cpu", sm=90, date="2026-11-27", triton="3.7.1", dlm="0.1.0", timings=timings
    )
    return file.model_dump() | changes


def changed(at: int, **changes) -> dict:
    file = file_content()
    file["timings"][at] |= changes
    return file


def test_configurations_of_a_file_are_read_as_they_were_written(tmp_path):
    path = tmp_path / FILE
    TunedFile.model_validate(file_content()).write(path)
    for tuned in (tuned_for(CPU, tmp_path), tuned_for(CPU, tmp_path / "elsewhere", path)):
        for name, shape in SHAPES.items():
            expected = KERNELS[name].candidates(9, shape)[-1]
            assert tuned.choose(KERNELS[name], CPU, **shape) == expected


def test_without_a_file_configurations_are_chosen_by_rule(tmp_path):
    assert tuned_for(CPU, tmp_path) is BY_RULE


def test_a_file_beside_the_model_comes_before_the_package_s_file_of_the_card(tmp_path):
    package, model = tmp_path / "package", tmp_path / "model"
    package.mkdir()
    model.mkdir()
    TunedFile.model_validate(file_content()).write(file_of("cpu", package))
    assert len(tuned_for(CPU, model, measured=package).fastest) == len(SHAPES)
    TunedFile.model_validate(file_content(timings=[])).write(model / FILE)
    assert tuned_for(CPU, model, measured=package).fastest == {}
    assert file_of("NVIDIA H100 80GB HBM3", package).name == "NVIDIA_H100_80GB_HBM3.json"


def test_each_file_of_the_package_is_named_for_its_card():
    for path in file_of("x").parent.glob("*.json"):
        assert file_of(TunedFile.read(path).card).name == path.name


WRONG = {
    "no file": (None, "cannot be read: No such file or directory"),
    "no JSON": ("{", "holds no JSON"),
    "no object": ([], "the whole: Input should be"),
    "no card": ({k: v for k, v in file_content().items() if k != "card"}, "card: Field required"),
    "a field more": (file_content(more=1), "more: Extra inputs"),
    "another card": (
        file_content(card="NVIDIA H100 80GB HBM3"),
        "is of another card: of NVIDIA H100 80GB HBM3, and this one is cpu",
    ),
    "no kernel": (
        changed(1, kernel="up"),
        "timings.1: the kernel must be one of gate_up",
    ),
    "other axes": (changed(2, shape={"rows": 1}), "timings.2: w4a16 has rows, outputs, inputs"),
    "no such tile": (
        changed(0, configuration={"BLOCK_N": 24}),
        "timings.0: the configuration of gate_up at {'bits': 4",
    ),
    "no such bits": (changed(0, shape=SHAPES["gate_up"] | {"bits": 3}), "must be one of []"),
    "no such heads": (changed(4, shape={"head_dim": 48, "bytes": 1}), "must be one of []"),
    "no time": (changed(0, microseconds=0.0), "timings.0.microseconds: Input should be greater"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_file_is_an_error_if_it_is_given_and_a_warning_if_it_is_found(
    wrong, tmp_path, caplog
):
    content, problem = WRONG[wrong]
    path = tmp_path / FILE
    if content is not None:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(TunedError) as error:
        tuned_for(CPU, tmp_path, path)
    assert problem in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    with caplog.at_level(logging.WARNING, "dlm"):
        assert tuned_for(CPU, tmp_path) is BY_RULE
    messages = [f"kernels are not tuned: {error.value}"] if content is not None else []
    assert [record.getMessage() for record in caplog.records] == messages
