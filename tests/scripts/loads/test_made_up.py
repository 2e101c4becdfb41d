"""Made-up regexes, grammars, choices and tools, under the stress test's denoisers.

    pytest tests/scripts/loads/test_made_up.py --tokenizer tokenizer.json.xz --made-up 200

`--made-up` is the number of each kind, `--tokenizer` a vocabulary other than the built-in one. The
judges are `re`, a recogniser that follows the definition, the options, and `jsonschema`.
"""

import re
from pathlib import Path

import jsonschema
import made_up
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from measure import contrary
from measure.schemas import vocabulary_of

import dlm.models
from dlm import Choice, Grammar, InvalidGrammarError, Regex, Tools
from dlm.grammar import Compiler, Vocabulary
from dlm.grammar.vocabulary import GemmaMarkers

BUILT_IN = Path(dlm.models.__file__).parent / "tiny" / "tokenizer.json"
MODELS = st.sampled_from(["random", "spiteful", "endless"])
SEEDS = st.integers(0, 2**32)


@pytest.fixture(scope="module")
def compiler(request) -> Compiler:
    path = request.config.getoption("--tokenizer")
    vocabulary = vocabulary_of(Path(path or BUILT_IN))
    if vocabulary.call is not None:
        return Compiler(vocabulary)
    unused = [i for i, piece in enumerate(vocabulary.pieces) if piece.startswith(b"<unused")][:3]
    return Compiler(
        Vocabulary(
            vocabulary.pieces,
            control={*vocabulary.control, *unused},
            stops=vocabulary.stops,
            pad=vocabulary.pad,
            thought=None,
            encode=vocabulary.encode,
            call=GemmaMarkers(*unused),
        )
    )


def many(test):
    """Run a test with the number of examples that the command line gives."""

    @pytest.mark.usefixtures("compiler")
    def run(compiler, request):
        checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
        count = request.config.getoption("--made-up")
        settings(max_examples=count, suppress_health_check=checks)(test)(compiler)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def answer(compiler, spec, model, seed):
    """Return the tokens of an answer without its stop, and their text."""
    compiled, vocabulary = compiler.compile(spec), compiler.vocabulary
    limit = max(512, 2 * contrary.shortest(compiled))
    tokens = contrary.answer(compiled, model, limit, np.random.default_rng(seed)).tokens
    assert tokens[-1] in vocabulary.stops, "cut off"
    assert len(tokens) <= limit
    return tokens[:-1], vocabulary.text(tokens)


@many
@given(pattern=made_up.REGEXES, model=MODELS, seed=SEEDS)
def test_a_text_obeys_its_regex(compiler, pattern, model, seed):
    spec = Regex(pattern)
    try:
        compiler.compile(spec)
    except InvalidGrammarError as error:
        assume("repeat less often" not in str(error))
        raise
    _, text = answer(compiler, spec, model, seed)
    assert re.fullmatch(pattern, text), text


@many
@given(language=made_up.languages(), model=MODELS, seed=SEEDS)
def test_a_text_obeys_its_grammar_in_ebnf(compiler, language, model, seed):
    _, text = answer(compiler, Grammar(language.ebnf()), model, seed)
    assert language.fits(text), text


@many
@given(language=made_up.languages(), model=MODELS, seed=SEEDS)
def test_a_text_obeys_its_grammar_in_lark(compiler, language, model, seed):
    _, text = answer(compiler, Grammar(language.lark(), "lark"), model, seed)
    assert language.fits(text), text


@many
@given(options=made_up.CHOICES, model=MODELS, seed=SEEDS)
def test_a_text_is_one_of_its_options(compiler, options, model, seed):
    _, text = answer(compiler, Choice(options), model, seed)
    assert text in options


@many
@given(tools=made_up.tools(), parallel=st.booleans(), model=MODELS, seed=SEEDS)
def test_calls_are_of_the_tools_and_obey_their_schemas(compiler, tools, parallel, model, seed):
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    spec = Tools(tools, choice="required", parallel=parallel)
    tokens, _ = answer(compiler, spec, model, seed)
    calls = spec.read(tokens, compiler.vocabulary).tool_calls
    assert calls
    assert parallel or len(calls) == 1
    for call in calls:
        jsonschema.validate(call.arguments, schemas[call.name])
