"""Numbers of four bits are compared exactly. Products may have the error of fp32 sums of K terms,
K * 2^-24 of the sum of all |x w|, and of a rounding to the type of the result, half a unit.
"""

import pytest
import torch
from torch import Tensor

from dlm.kernels import tiles as tiles_kernels
from dlm.kernels.configurations import W4A16, Configuration
from dlm.kernels.gpus import Target, multiplies_four_bits
from dlm.kernels.nvfp4 import (
    NVFP4,
    dequantize,
    matmul_w4a4,
    quantize,
    quantize_reference,
)
from dlm.kernels.tiles import BY_SM, Tiles, matmul_w4a16, tiled_matrix

DTYPES = [torch.bfloat16, torch.float16]
NUMBERS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
SHAPES = [(1, 1, 64), (3, 130, 192), (16, 128, 128), (17, 5, 64), (65, 33, 320), (70, 257, 128)]


def uneven(M: int, K: int, rng: torch.Generator) -> Tensor:
    """Return normal numbers in blocks of sizes from 1e-4 to 10, and one block of zeros."""
    size = torch.logspace(-4, 1, K // 16).repeat_interleave(16)
    matrix = torch.randn(M, K, generator=rng) * size
    matrix[-1, :16] = 0
    return matrix


def poisoned(matrix: Tensor) -> Tensor:
    """Return a copy whose rows lie between NaNs."""
    padded = torch.full((len(matrix) + 2, matrix.shape[1] + 96), torch.nan, dtype=matrix.dtype)
    return padded[1:-1, 16 : 16 + matrix.shape[1]].copy_(matrix)


def assert_product(y: Tensor, x: Tensor, w: Tensor) -> None:
    x, w = x.double(), w.double()
    exact, terms = x @ w.T, x.abs() @ w.abs().T
    unit = torch.finfo(y.dtype).eps / 2
    bound = x.shape[1] * 2**-24 * terms + unit * exact.abs() + torch.finfo(y.dtype).tiny

    assert ((y.double() - exact).abs() <= bound).all()


def w4a16(
    x: Tensor, w: NVFP4, by_kernel: bool, configuration: Configuration | None = None
) -> Tensor:
    """Multiply: by the kernel with tiles of `w`, or else with `w` itself."""
    tiles = tiled_matrix(w) if by_kernel else w
    return matmul_w4a16(x, tiles, by_kernel, len(w.packed), configuration)


def same(a: NVFP4, b: NVFP4) -> bool:
    return (
        torch.equal(a.packed, b.packed)
        and torch.equal(a.scale.view(torch.uint8), b.scale.view(torch.uint8))
        and torch.equal(a.scale_2, b.scale_2)
    )


def test_ties_become_the_even_code_and_other_numbers_the_nearest(by_kernel):
    """Scales are 1, as the largest number of each block is 6."""
    exact = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    below, above = exact.nextafter(torch.tensor(0.0)), exact.nextafter(torch.tensor(7.0))
    x = torch.stack([torch.cat([some, -some]) for some in (exact, below, above)])
    x[:, 7], x[:, 15] = 6.0, -6.0

    w = quantize(x, torch.tensor(1.0), by_kernel=by_kernel)

    near = [[0, 1, 1, 2, 2, 4, 4, 6], [0, 0.5, 1, 1.5, 2, 3, 4, 6], [0.5, 1, 1.5, 2, 3, 4, 6, 6]]
    expected = torch.tensor(near).float()
    assert torch.equal(dequantize(w), torch.cat([expected, -expected], 1))


def test_each_number_becomes_the_nearest_one_at_its_scale(rng):
    x = uneven(20, 128, rng)

    w = quantize(x)

    unit = (w.scale.float() * w.scale_2).repeat_interleave(16, 1)
    codes = torch.cat([NUMBERS, -NUMBERS]).double()
    distance = (x.double()[..., None] - codes * unit.double()[..., None]).abs().amin(-1)
    error = (dequantize(w).double() - x).abs()
    assert (error <= distance + 2**-22 * x.abs()).all(), "up to the rounding of x / unit"
    assert (w.scale.float().amax() == 448).all()


def test_a_block_of_zeros_is_zeros_even_in_a_tensor_of_zeros():
    w = quantize(torch.zeros(2, 32))

    assert not w.packed.any()
    assert w.scale.float().eq(1).all()
    assert w.scale_2 == 1
    assert not dequantize(w).any()


def test_a_block_too_small_for_any_scale_has_the_least_one():
    x = torch.full((1, 32), 1e-9)
    x[0, 0] = 6.0

    w = quantize(x)

    assert w.scale.float().tolist() == [[448, 2**-9]]
    assert not dequantize(w)[0, 16:].any()


def test_the_lower_four_bits_of_a_byte_come_first():
    packed = torch.tensor([[0x21, 0xF7, *[0] * 6]], dtype=torch.uint8)
    scale = torch.tensor([[2.0]]).to(torch.float8_e4m3fn)

    w = NVFP4(packed, scale, torch.tensor(0.5))

    assert dequantize(w)[0, :4].tolist() == [0.5, 1.0, 6.0, -6.0]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(1, 16), (3, 48), (33, 128), (5, 1024)])
def test_the_kernel_quantises_bit_for_bit_as_the_reference_does(shape, dtype, rng):
    x = uneven(*shape, rng).to(dtype)
    scale_2 = quantize_reference(x).scale_2

    for given in (scale_2, scale_2 * 0.3, scale_2 * 1e4):  # too small: numbers saturate; too large
        actual = quantize(poisoned(x), given, by_kernel=True)
        assert same(actual, quantize_reference(x, given))


def test_quantising_again_changes_nothing(rng):
    """A scale is rounded by less than 1 in 16 here, so the largest number of a block is 6."""
    w = quantize(torch.randn(7, 64, generator=rng))

    assert torch.equal(dequantize(quantize(dequantize(w), w.scale_2)), dequantize(w))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_product_decodes_every_code_with_every_scale_exactly(dtype):
    """The unit matrix is multiplied, so that each result is a single number, exact in bf16."""
    codes = torch.arange(16, dtype=torch.uint8).repeat(127, 4)
    packed = codes[:, 1::2] << 4 | codes[:, ::2]
    scale = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn)
    w = NVFP4(packed, scale[:, None].repeat(1, 4), torch.tensor(1.0))

    y = w4a16(torch.eye(64, dtype=dtype), w, by_kernel=True)

    expected = torch.cat([NUMBERS, -NUMBERS])[codes.int()] * scale.float()[:, None]
    assert torch.equal(y.T.float(), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("N", "M", "K"), SHAPES)
def test_w4a16_is_the_product(N, M, K, dtype, by_kernel, rng):
    w = quantize(uneven(M, K, rng))
    x = torch.randn(N, K, generator=rng).to(dtype)

    y = w4a16(poisoned(x), w, by_kernel=by_kernel)

    assert_product(y, x, dequantize(w))


@pytest.mark.parametrize("sm", BY_SM)
def test_w4a16_is_the_product_in_every_configuration_of_a_gpu(sm, monkeypatch, rng):
    monkeypatch.setattr(tiles_kernels, "major", lambda device: sm)
    w, shape = quantize(uneven(130, 192, rng)), {"rows": 70, "outputs": 130, "inputs": 192}
    for tile in W4A16.candidates(sm, shape):
        x = torch.randn(70, 192, generator=rng).bfloat16()
        y = w4a16(x, w, by_kernel=True, configuration=tile)
        assert_product(y, x, dequantize(w))


def test_torch_multiplies_tiles_and_rows_alike(rng):
    x, w = torch.randn(5, 128, generator=rng).half(), quantize(uneven(70, 128, rng))

    y = matmul_w4a16(x, tiled_matrix(w), by_kernel=False, rows=70)

    assert torch.equal(y, matmul_w4a16(x, w))


@pytest.mark.parametrize(
    ("N", "M", "tile"),
    [
        (256, 8192, (64, 128)),  # 256 programs
        (256, 2112, (64, 64)),  # 132, where the larger one has 68
        (256, 1024, (32, 64)),  # 128
        (256, 512, (16, 64)),  # 128
        (33, 8192, (64, 64)),
        (32, 8192, (32, 64)),
        (1, 8192, (16, 64)),
        (1, 64, (16, 64)),
    ],
)
def test_tiles_are_as_large_as_leaves_work_for_all_processors(N, M, tile):
    found = W4A16.by_rule(Target(9, 132), {"rows": N, "outputs": M, "inputs": 2816})

    assert (found["BLOCK_N"], found["BLOCK_M"]) == tile


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("N", "M", "K"), SHAPES)
def test_w4a4_is_the_product_of_quantised_matrices(N, M, K, dtype, by_kernel, rng):
    w = quantize(uneven(M, K, rng))
    x = uneven(N, K, rng).to(dtype)
    input_scale = x.float().abs().amax() / (6 * 448)

    y = matmul_w4a4(poisoned(x), w, input_scale, by_kernel=by_kernel)

    assert_product(y, dequantize(quantize(x, input_scale)), dequantize(w))


def test_rows_may_be_further_apart_than_an_int32_counts(rng):
    stride = 2**30  # elements; 4 GiB of addresses, of which three pages are touched
    flat = torch.empty(2 * stride + 64, dtype=torch.bfloat16)
    x = flat.as_strided((3, 64), (stride, 1)).copy_(torch.randn(3, 64, generator=rng))
    w = quantize(uneven(5, 64, rng))

    assert_product(w4a16(x, w, by_kernel=True), x, dequantize(w))


@pytest.mark.parametrize(("N", "M"), [(0, 8), (8, 0), (0, 0)])
def test_nothing_to_multiply_is_no_error(N, M, by_kernel):
    x, w = torch.zeros(N, 64, dtype=torch.bfloat16), quantize(torch.zeros(M, 64))

    assert w4a16(x, w, by_kernel=by_kernel).shape == (N, M)
    assert matmul_w4a4(x, w, torch.tensor(1.0), by_kernel=by_kernel).shape == (N, M)
    assert quantize(x, torch.tensor(1.0), by_kernel=by_kernel).scale.shape == (N, 4)


def weights(M: int, K: int) -> NVFP4:
    return quantize(torch.ones(M, K))


@pytest.mark.parametrize(
    ("x", "w", "message"),
    [
        (torch.zeros(2, 64), weights(3, 64), r"bf16 or fp16, got \[2, 64\] of torch.float32"),
        (torch.zeros(64).half(), weights(3, 64), r"\[N, K\] .* got \[64\]"),
        (torch.zeros(2, 96).half(), weights(3, 96), "blocks of 64 numbers, got 96"),
        (
            torch.zeros(2, 128).half(),
            weights(3, 64),
            r"\[M, 64\], \[M, 8\] and \[\], got \[\[3, 32",
        ),
        (torch.zeros(2, 128).half()[:, ::2], weights(3, 64), r"row of x .* strides \(128, 2\)"),
        (
            torch.zeros(2, 64).half(),
            weights(3, 64)._replace(scale=torch.ones(3, 4)),
            "uint8, float8_e4m3fn and float32, got .*torch.float32, torch.float32",
        ),
        (
            torch.zeros(2, 64).half(),
            NVFP4(*(t[::2] if t.ndim else t for t in weights(6, 64))),
            "must be contiguous",
        ),
        (
            torch.zeros(2, 64, device="meta").half(),
            weights(3, 64),
            "on meta but its weights .* cpu",
        ),
    ],
)
@pytest.mark.parametrize("matmul", [matmul_w4a16, lambda x, w: matmul_w4a4(x, w, torch.ones(()))])
def test_matrices_that_do_not_fit_are_refused(matmul, x, w, message):
    with pytest.raises(ValueError, match=message):
        matmul(x, w)


@pytest.mark.parametrize(
    ("change", "rows", "message"),
    [
        (lambda w: w._replace(words=w.words.int()), 70, r"\[1, R, 2, 64, 16\] of int16, .* got"),
        (lambda w: w._replace(scale_2=torch.ones(())), 70, r"and \[1, 1\] of float32, got"),
        (lambda w: Tiles(*(each.mT if each.ndim > 2 else each for each in w)), 70, "contiguous"),
        (lambda w: w._replace(scale=w.scale[:, :1]), 70, r"got .*\[1, 1, 2, 64, 4\], torch.uint8"),
        (lambda w: w._replace(scale_2=w.scale_2.to("meta")), 70, "on cpu but .* on meta"),
        (lambda w: w, 64, "rows is 64, and the tiles are of 128"),
        (lambda w: w, 129, "rows is 129, and the tiles are of 128"),
    ],
)
def test_tiles_that_do_not_fit_are_refused(change, rows, message):
    w = change(tiled_matrix(weights(70, 128)))

    with pytest.raises(ValueError, match=message):
        matmul_w4a16(torch.zeros(2, 128).half(), w, rows=rows)


def test_the_kernel_refuses_weights_in_rows():
    x, w = torch.zeros(2, 64).half(), weights(3, 64)

    with pytest.raises(ValueError, match="takes NVFP4 in tiles: `tiled_matrix` makes them"):
        matmul_w4a16(x, w, by_kernel=True)
    with pytest.raises(ValueError, match="rows is 2, and the weights have 3"):
        matmul_w4a16(x, w, rows=2)


@pytest.mark.parametrize(
    ("x", "scale_2", "message"),
    [
        (torch.zeros(2, 24), None, r"K % 16 == 0, got \[2, 24\]"),
        (torch.zeros(2, 2, 16), None, r"\[M, K\] of floats.*got \[2, 2, 16\]"),
        (torch.zeros(2, 16).int(), None, "of torch.int32"),
        (torch.zeros(2, 16), torch.ones(1), r"one fp32, got \[1\]"),
        (torch.zeros(2, 16), torch.tensor(1), "one fp32, got .*torch.int64"),
    ],
)
def test_matrices_and_scales_that_do_not_fit_quantisation_are_refused(x, scale_2, message):
    with pytest.raises(ValueError, match=message):
        quantize(x, scale_2)


@pytest.mark.parametrize("sm", [(9, 0), (10, 3), (12, 1)])
def test_w4a4_is_refused_on_a_gpu_without_block_scales_in_favour_of_w4a16(sm, monkeypatch):
    monkeypatch.setattr("dlm.kernels.gpus.capability", lambda x: sm)
    x = torch.zeros(2, 64).half()

    message = rf"a GPU of SM 10.0 and 12.0, this one is of SM {sm[0]}.{sm[1]}: W4A16 is for all"
    with pytest.raises(ValueError, match=message):
        matmul_w4a4(x, weights(3, 64), torch.tensor(1.0))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, *DTYPES], ids=str)
def test_modelopt_quantises_to_the_same_bits(dtype, rng):
    """Optional: `pip install nvidia-modelopt requests omegaconf pulp scipy`; imports in 17 s."""
    theirs = pytest.importorskip("modelopt.torch.quantization.qtensor").NVFP4QTensor
    x = uneven(64, 256, rng).to(dtype)
    x[0, :16] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6] * 2).to(dtype) * 4  # ties

    w = quantize(x)
    q, scale, scale_2 = theirs.quantize(x.clone(), 16)

    assert same(w, NVFP4(q._quantized_data, scale, scale_2))
    blocks = {"scale": scale, "double_scale": scale_2, "block_sizes": {-1: 16}}
    assert torch.equal(dequantize(w), q.dequantize(dtype=torch.float32, **blocks))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("N", "M", "K"), [*SHAPES, (256, 2816, 704), (33, 1408, 2816)])
def test_a_gpu_multiplies_and_quantises(N, M, K, dtype, rng):
    x, w = torch.randn(N, K, generator=rng).to(dtype), quantize(uneven(M, K, rng))
    input_scale = x.float().abs().amax() / (6 * 448)
    sent = NVFP4(*(tensor.cuda() for tensor in w))

    assert_product(w4a16(x.cuda(), sent, by_kernel=True).cpu(), x, dequantize(w))
    if torch.cuda.get_device_capability() >= (8, 9):
        q = quantize(x.cuda(), input_scale.cuda())
        assert same(NVFP4(*(tensor.cpu() for tensor in q)), quantize_reference(x, input_scale))
    if multiplies_four_bits(torch.device("cuda")):
        y = matmul_w4a4(x.cuda(), sent, input_scale.cuda()).cpu()
        assert_product(y, dequantize(quantize(x, input_scale)), dequantize(w))
