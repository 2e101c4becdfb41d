"""Labels of texts with their probabilities: sure ones are taken, the others go to a person.

    python examples/classify.py

One pass a text, and no text is written. No server runs.
"""

from enum import Enum

import dlm


class Job(Enum):
    TEACHER = "teacher"
    NURSE = "nurse"
    DRIVER = "driver"


LABELS = [job.value for job in Job]
TEXTS = ["My brother Ben Kim is a nurse in Oslo.", "Olga Lopez has been a driver for ten years."]
SURE = 0.5


def main(engine: dlm.Engine) -> None:
    question = dlm.ChoiceQuestion(choices=LABELS)
    for text in TEXTS:
        prompt = f"Answer with one word of {', '.join(LABELS)}. {text}"
        (answer,) = engine.decide(dlm.Request(prompt=prompt), [question])
        assert isinstance(answer, dlm.ChoiceAnswer)
        where = "taken" if answer.confidence >= SURE else "for a person"
        shares = ", ".join(f"{label} {share:.0%}" for label, share in answer.probabilities.items())
        print(f"{text} -> {Job(answer.choice)}, {where} ({shares})")


if __name__ == "__main__":
    with_model = dlm.Engine.load()
    main(with_model)
    with_model.close()
