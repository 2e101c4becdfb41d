"""Names that `import dlm` provides, and libraries that it does not import."""

import pytest
from processes import printed

import dlm
from dlm import RequestError, grammar, models
from dlm.grammar import InvalidGrammarError


def test_libraries_are_imported_at_first_use_and_not_for_errors():
    code = """if True:
        import sys
        import dlm
        dlm.DlmError, dlm.RequestError, dlm.InvalidGrammarError, dlm.CheckpointError
        print(dlm.integrations.__name__, dlm.grammar.__name__, dlm.models.__name__)
        print(*[name in sys.modules for name in ("torch", "transformers", "ray")])
        print(dlm.integrations.transformers.Constrain.__name__)
        print(dlm.integrations.causal_lm.__name__, "ray" in sys.modules)
    """
    assert printed(code).splitlines() == [
        "dlm.integrations dlm.grammar dlm.models",
        "False False False",
        "Constrain",
        "dlm.integrations.causal_lm False",
    ]


def test_unknown_names_are_attribute_errors():
    for module in (dlm, dlm.integrations, dlm.models, dlm.grammar):
        with pytest.raises(AttributeError, match="no attribute 'nosuch'"):
            _ = module.nosuch
    assert {"integrations", "Engine", "DlmError"} <= {*dir(dlm)}
    assert {"transformers", "ray", "causal_lm"} <= {*dir(dlm.integrations)}


def test_errors_of_all_packages_have_one_base_class():
    found = [getattr(module, name) for module in (dlm, grammar) for name in module.__all__]
    found += vars(models).values()
    errors = {one for one in found if isinstance(one, type) and issubclass(one, Exception)}
    assert {InvalidGrammarError, models.CheckpointError, RequestError} <= errors
    assert all(issubclass(error, dlm.DlmError) for error in errors)
    assert issubclass(InvalidGrammarError, ValueError)
    with pytest.raises(dlm.DlmError, match="model_type"):
        models.ModelConfig.from_hf({})
    with pytest.raises(dlm.DlmError):
        dlm.JsonSchema({"type": "nothing"})
