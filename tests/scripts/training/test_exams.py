"""The exams of a trained model."""

from pathlib import Path

from processes import printed
from training.exams import exams

SCRIPTS = Path(__file__).parents[3] / "scripts"
PRINT_EXAMS = """if True:
    from training.exams import exams
    print([sample.prompt for samples in exams(20, 0).values() for sample in samples])
"""


def test_exams_are_the_same_in_every_process():
    """Each process hashes texts differently, so that its sets have another order."""
    here = f"{[s.prompt for x in exams(20, 0).values() for s in x]}\n"
    for seed in ("1", "2"):
        assert printed(PRINT_EXAMS, PYTHONHASHSEED=seed, PYTHONPATH=str(SCRIPTS)) == here
    assert here.count("JSON") > 50
