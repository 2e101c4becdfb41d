"""Parameters of tests that run by default, and those that `make test-all` adds."""

from itertools import product

from exhaustive import by_default, pairs_by_default


def marked(parameters):
    """Return the values that run by default, and the others."""
    return (
        [parameter.values for parameter in parameters if bool(parameter.marks) is mark]
        for mark in (False, True)
    )


def test_each_two_values_meet_by_default_and_all_combinations_remain():
    axes = "abcdef", "xyz", (1, 2), (None, 3.0)
    default, others = marked(pairs_by_default(*axes))
    assert sorted(map(str, [*default, *others])) == sorted(map(str, product(*axes)))
    for i, one in enumerate(axes):
        for j, other in enumerate(axes[:i]):
            assert {(case[i], case[j]) for case in default} == {*product(one, other)}
    assert len(default) < len(others)


def test_the_first_values_run_by_default():
    parameters = by_default([(1, 2), (3, 4), (5, 6)], 2)
    assert parameters[:2] == [(1, 2), (3, 4)]
    assert [(param.values, bool(param.marks)) for param in parameters[2:]] == [((5, 6), True)]
