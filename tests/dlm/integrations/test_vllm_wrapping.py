"""Functions that are wrapped where they are."""

from dlm.integrations.vllm.front_end import wrap


class Theirs:
    def double(self, number):
        """Theirs."""
        return 2 * number


def test_a_method_is_wrapped_once_however_often_it_is_asked_for():
    def make(original):
        return lambda self, number: original(self, number) + 1

    for _ in range(3):
        wrap(Theirs, "double", make)
    assert Theirs().double(4) == 9
    assert Theirs.double.__doc__ == "Theirs."
