"""The longest loop is found in SASS; test_compiles.py compiles kernels."""

from dlm.kernels.offline import longest_loop


def sass(*lines: str) -> str:
    """Return lines in the form of nvdisasm: each is an instruction or a label."""
    return "\n".join(
        line if line.endswith(":") else f"        /*{16 * i:04x}*/                   {line} ;"
        for i, line in enumerate(lines)
    )


def test_the_longest_of_the_innermost_loops_counts():
    inner, other, outer = ["FADD R0, R0, R0"] * 29, ["FMUL R0, R0, R0"] * 19, ["MOV R1, R0"] * 7
    text = sass(
        ".L_x_0:",
        *outer,
        ".L_x_1:",
        *inner,
        "@P0 BRA `(.L_x_1)",
        *outer,
        "@!P1 BRA `(.L_x_0)",
        ".L_x_2:",
        *other,
        "@P2 BRA `(.L_x_2)",
        "EXIT",
    )

    assert longest_loop(text) == 30


def test_a_loop_that_waits_does_not_count():
    body = ["FADD R0, R0, R0"] * 20
    text = sass(
        ".L_x_0:", *body, ".L_x_1:", "SYNCS.PHASECHK R1", "@!P0 BRA `(.L_x_1)", *body,
        "@P1 BRA `(.L_x_0)", "EXIT",
    )  # fmt: skip

    assert longest_loop(text) == 43


def test_without_a_loop_all_instructions_up_to_the_exit_count():
    text = sass(
        *["MOV R1, R0"] * 17, "@P0 BRA `(.L_x_0)", "FADD R0, R0, R0", ".L_x_0:", "EXIT",
        ".L_x_1:", "BRA `(.L_x_1)", "NOP", "NOP",
    )  # fmt: skip

    assert longest_loop(text) == 20
