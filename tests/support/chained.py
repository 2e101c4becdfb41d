"""Log-probability of a text under a causal model, by the chain rule, in one pass of its own."""

from dlm.models import DiffusionGemma

STOPS = [1, 106, 50]


def one_by_one(model: DiffusionGemma, prompt: list[int], text: list[int]) -> float:
    """Return the log-probability of `text` after `prompt`, and of a stop after it, in nats."""
    cache = model.new_cache(1)
    states = model.encode([prompt + text], cache, [0])
    logp = model.softcapped(model.logits(states)).double().log_softmax(-1)[len(prompt) - 1 :]
    total = sum(float(logp[i, token]) for i, token in enumerate(text))
    return total + float(logp[len(text), STOPS].logsumexp(0))
