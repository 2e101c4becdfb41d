"""Prompts of the comparison: those that the script draws, and those of the package."""

import compare
import pytest

from dlm.cli.compare.judging import PromptError, built_in


def test_prompts_that_come_with_the_package_are_those_that_the_script_draws():
    shipped, drawn = built_in(300, 0), compare.drawn(300, 0)
    assert shipped == drawn
    assert repr(shipped) == repr(drawn)  # numbers have their types
    assert built_in(2, 5) == shipped[:2] != compare.drawn(2, 5)
    with pytest.raises(PromptError, match="there are 300 built-in prompts, not 301"):
        built_in(301, 0)
