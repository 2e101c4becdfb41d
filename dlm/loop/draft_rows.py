"""Pictures of drafts: what a pass wrote left to right, and what its canvas expects after that."""

from dlm.events import Draft
from dlm.loop.denoise import Outcome
from dlm.sequence import Sequence


def take_draft_row(sequence: Sequence, outcome: Outcome | None, masks: bool) -> Draft:
    """Return the canvas of a request after a pass, and note what it shows.

    Its leading positions are the tokens that have been written since the last picture: they are
    pinned. The guess of the canvas follows; of that, the accepted positions are the draft that the
    next pass judges. `outcome` is None where the canvas expected another text, and there is no
    guess then. `masks` is whether canvases begin as masks.
    """
    state = sequence.state
    begin, state.pictured = state.pictured, len(sequence.tokens)
    written = sequence.tokens[begin:]
    count = len(written)
    guess, suspect, entropy, drafted = list[int](), 0, 0.0, 0
    if outcome is not None:
        guess, suspect = outcome.guidance.guess, outcome.guidance.suspect
        entropy, drafted = outcome.entropy, len(state.draft)
    accepted = [True] * (count + drafted) + [False] * (len(guess) - drafted)
    return Draft(
        request=sequence.number,
        step=1,
        committed=begin,
        entropy=entropy,
        tokens=written + guess,
        accepted=accepted,
        masked=[masks and not kept for kept in accepted],
        pinned=count,
        suspect=count + suspect,
        passes=sequence.stats.causal_calls,
        repairs=sequence.stats.repairs,
    )
