"""What a trained model is asked."""

from pathlib import Path

from processes import printed
from training.lessons import exams

SCRIPTS = Path(__file__).parents[3] / "scripts"
ASKED = """if True:
    from training.lessons import exams
    print([sample.prompt for samples in exams(20, 0).values() for sample in samples])
"""


def test_every_process_asks_the_same():
    """Python hashes text otherwise in each of them, and sets come in another order."""
    here = f"{[s.prompt for x in exams(20, 0).values() for s in x]}\n"
    for seed in ("1", "2"):
        assert printed(ASKED, PYTHONHASHSEED=seed, PYTHONPATH=str(SCRIPTS)) == here
    assert here.count("JSON") > 50
