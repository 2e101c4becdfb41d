"""The plugin's check of vLLM's source, against made-up source files."""

import pytest

from dlm.integrations.needs import NeededFunction
from dlm.integrations.vllm.needs import MODEL_NEEDS, NEEDS, missing, servable, unservable
from dlm.integrations.vllm.own import GEMMA, NEMOTRON


def source_of(needs):
    """Return source that has all of `needs`, and no more."""
    lines = []
    for need in needs:
        if isinstance(need, NeededFunction):
            lines.append(f"def {need.name}({', '.join((*need.parameters, '**more'))}): ...")
            continue
        lines.append(f"class {need.name}:")
        for name, parameters in need.methods.items():
            lines.append(f"    def {name}({', '.join(('self', *parameters, 'more'))}): ...")
        lines.append("    def __init__(self):")
        lines += [f"        self.{name} = None" for name in need.attributes]
        lines += [f"        self.any.{name}()" for name in need.calls]
        lines.append("        pass")
        if need.name == "SamplingParams":
            lines.append("    def _validate_structured_outputs(self, config):")
            lines.append("        assert not config.is_diffusion")
    return "\n".join(lines) + "\n"


@pytest.fixture
def package(tmp_path):
    write(tmp_path, (*NEEDS, *MODEL_NEEDS[GEMMA]))
    return tmp_path


def write(package, needs):
    for file in {need.file for need in needs}:
        path = package / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source_of([need for need in needs if need.file == file]))


def replaced(package, file, old, new):
    path = package / file
    source = path.read_text()
    assert old in source
    path.write_text(source.replace(old, new))


def test_nothing_is_missing_in_a_vllm_that_has_all_needs(package):
    assert missing(package) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("v1/engine/async_llm.py", "class AsyncLLM", "class Other", "AsyncLLM in v1/engine"),
        (
            "v1/structured_output/__init__.py",
            "def accept_tokens(self, request, new_token_ids, more)",
            "def accept_tokens(self, tokens)",
            "accept_tokens(request, new_token_ids), whose parameters are tokens",
        ),
        (
            "model_executor/models/diffusion_gemma.py",
            "def remove_request(self, req_id",
            "def drop(self, req_id",
            "DiffusionGemmaModelState.remove_request",
        ),
        (
            "model_executor/models/diffusion_gemma.py",
            "self.max_steps",
            "self.steps",
            "DiffusionGemmaRequestStates.max_steps",
        ),
        (
            "model_executor/models/diffusion_gemma.py",
            "self.max_denoising_steps",
            "self.most_steps",
            "DiffusionGemmaRequestStates.max_denoising_steps",
        ),
        ("v1/worker/gpu/states.py", "draft_tokens", "drafts", "RequestState.draft_tokens"),
        (
            "v1/core/sched/scheduler.py",
            "any.accept_tokens()",
            "any.accept()",
            "a call of accept_tokens in Scheduler",
        ),
        (
            "tokenizers/registry.py",
            "def cached_tokenizer_from_config",
            "def cached_tokenizer",
            "cached_tokenizer_from_config in tokenizers/registry.py",
        ),
        (
            "tokenizers/registry.py",
            "model_config",
            "config",
            "cached_tokenizer_from_config(model_config), whose parameters are config",
        ),
        (
            "model_executor/models/registry.py",
            "def register_model",
            "def register",
            "_ModelRegistry.register_model",
        ),
        ("sampling_params.py", "config.is_diffusion", "config", "it may have its own by now"),
        ("exceptions.py", "class", "clas", "exceptions.py cannot be read"),
    ],
)
def test_missing_needs_are_named(package, file, old, new, problem):
    replaced(package, file, old, new)
    found = missing(package)
    assert len(found) == 1
    assert problem in found[0]


def test_a_vllm_without_the_model_lacks_its_file(tmp_path):
    assert "model_executor/models/diffusion_gemma.py cannot be read" in missing(tmp_path)


GEMMA_FILE = "model_executor/models/diffusion_gemma.py"
NEMOTRON_FILE = "model_executor/models/nemotron_dllm.py"


def test_a_model_that_vllm_does_not_have_lacks_nothing(package):
    assert servable(package) == [GEMMA]
    assert unservable(package) == {}


def test_both_models_are_served_where_vllm_has_both(package):
    write(package, MODEL_NEEDS[NEMOTRON])
    assert servable(package) == [GEMMA, NEMOTRON]
    assert unservable(package) == {}
    (package / GEMMA_FILE).unlink()
    assert servable(package) == [NEMOTRON]
    assert missing(package) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "class NemotronLabsDiffusionForBlockDiffusion",
            "class MinistralDiffEncoderModel",
            "NemotronLabsDiffusionForBlockDiffusion in model_executor",
        ),
        ("self.unmask_ranks", "self.ranks", "NemotronLabsDiffusionRequestStates.unmask_ranks"),
        ("self.mask_token_id", "self.mask", "NemotronLabsDiffusionRequestStates.mask_token_id"),
        (
            "self.max_denoising_steps",
            "self.max_steps",
            "NemotronLabsDiffusionRequestStates.max_denoising_steps",
        ),
        ("self.req_states", "self.states", "MaskedDiffusionSampler.req_states"),
        (
            "def __call__(self, logits, input_batch",
            "def __call__(self, batch, logits",
            "MaskedDiffusionSampler.__call__(logits, input_batch), whose parameters are batch",
        ),
        ("def custom_sampler", "def sampler", "NemotronLabsDiffusionModelState.custom_sampler"),
        ("class", "clas", "nemotron_dllm.py cannot be read"),
    ],
)
def test_a_model_with_other_names_is_left_alone_and_the_other_one_is_served(
    package, old, new, problem
):
    write(package, MODEL_NEEDS[NEMOTRON])
    replaced(package, NEMOTRON_FILE, old, new)
    assert servable(package) == [GEMMA]
    assert missing(package) == []
    ((model, problems),) = unservable(package).items()
    assert model is NEMOTRON
    assert len(problems) == 1
    assert problem in problems[0]
