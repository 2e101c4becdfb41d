"""Arguments that do not fit the vocabulary pass are refused before anything is read."""

import pytest
import torch

from dlm.kernels.vocab import vocab_pass
from dlm.kernels.vocab_rows import RowMasks


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(2, 2, 33)}, r"\[n, V\].*got \[2, 2, 33\]"),
        ({"logits": torch.zeros(2, 33).double()}, r"fp32, bf16 or fp16.*torch.float64"),
        ({"logits": torch.zeros(2, 66)[:, ::2]}, r"row of logits .* strides \(66, 2\)"),
        ({"inverse_temperature": torch.ones(3)}, r"inverse_temperature .* 2 rows.*got \[3\]"),
        ({"uniform": torch.ones(2).double()}, r"uniform is one torch.float32 .* torch.float64"),
        ({"uniform": torch.ones(2, device="meta")}, "on cpu but uniform is on meta"),
        ({"softcap": 0.0}, "softcap is above 0, or None, got 0.0"),
        ({"threshold": 0.0}, "threshold is a probability above 0, got 0.0"),
        ({"k": -1}, "number of candidates, got -1"),
        ({"uniform": torch.ones(4)[::2]}, r"uniform must be adjacent, got strides \(2,\)"),
        ({"rows": torch.tensor([0, 2])}, "rows are 0 to 1, got 0 to 2"),
        ({"rows": torch.tensor([0, -1])}, "rows are 0 to 1, got -1 to 0"),
        ({"rows": torch.tensor([0, 1]).int()}, "rows is one torch.int64 .* torch.int32"),
        ({"rows": torch.tensor([0])}, r"inverse_temperature .* 1 rows.*got \[2\]"),
        ({"rows": torch.tensor([[0], [1]])}, r"rows is one .* got \[2, 1\]"),
        ({"masks": ((2, 1), [0, 1])}, "1 words of 32 bits are too few for 33"),
        ({"masks": ((2, 2), [0])}, r"masks.rows is one torch.int64 .* 2 rows; got \[1\]"),
        ({"masks": ((2, 2), [0, 2])}, "masks.rows are -1 to 1, got 0 to 2"),
        ({"masks": ((2, 2), [0, -2])}, "masks.rows are -1 to 1, got -2 to 0"),
        ({"masks": ((2,), [0, 0])}, r"bitmask is \[M, W\] of int32, got \[2\]"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change, message, by_kernel):
    args = {
        "logits": torch.zeros(2, 33),
        "inverse_temperature": torch.ones(2),
        "uniform": torch.zeros(2),
    } | change
    if isinstance(args.get("masks"), tuple):
        shape, rows = args["masks"]
        args["masks"] = RowMasks(torch.zeros(shape, dtype=torch.int32), torch.tensor(rows))

    with pytest.raises(ValueError, match=message):
        vocab_pass(**args, by_kernel=by_kernel)


@pytest.mark.parametrize(
    ("bitmask", "message"),
    [
        (torch.zeros(2, 2), "int32, got .* torch.float32"),
        (torch.zeros(2, 2, dtype=torch.int32).T, r"row of bitmask .* strides \(1, 2\)"),
        (torch.zeros(2, 2, dtype=torch.int32, device="meta"), "on cpu but their bitmask is on"),
    ],
)
def test_bitmasks_that_do_not_fit_are_refused(bitmask, message):
    masks = RowMasks(bitmask, torch.tensor([0, 1]))

    with pytest.raises(ValueError, match=message):
        vocab_pass(torch.zeros(2, 33), torch.ones(2), torch.zeros(2), masks)
