"""The doubles of SGLang's algorithms, by which `make test` tests the plugin, decide as they do."""

import pytest
import sglang_doubles
from blocks import answer
from invoice_requests import algorithm, requests_for

BLOCK, STEPS = 16, 12


@pytest.mark.parametrize("fdfo", [False, True], ids=["sync", "fdfo"])
@pytest.mark.parametrize("model", ["knowing", "sure"])
@pytest.mark.parametrize("name", ["LowConfidence", "JointThreshold", "Gemma4Renoise"])
def test_free_answers_of_a_double_are_those_of_sglang(
    models, compiled, vocabulary, name, model, fdfo
):
    how = {"max_denoising_steps": STEPS} if name == "Gemma4Renoise" else {}
    own = algorithm(name, BLOCK, fdfo, settings=None, **how)
    double = getattr(sglang_doubles, name)(BLOCK, own.mask_id, fdfo)
    outputs = []
    for decided_by in (own, double):
        requests = requests_for(compiled, range(3), budget=60, free=range(3))
        answer(decided_by, requests, models[model], vocabulary.stops)
        outputs.append([(request.output, request.ended) for request in requests])
    assert outputs[0] == outputs[1]
