"""Nemotron in vLLM's worker: the plugin's state and model over doubles of vLLM's classes."""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
import vllm_package
from values import V
from vllm_configs import config
from vllm_double import batch_of
from vllm_masks import MaskSampler, MaskStates
from vllm_params import payload_of

from dlm.grammar import Compiler, Regex
from dlm.integrations.vllm.admission import vocabulary_of
from dlm.integrations.vllm.masked import MaskedSampler
from dlm.integrations.vllm.own import NEMOTRON, TASK
from dlm.integrations.vllm.payload import KEY

MASK, LENGTH = 4, 8
FILE = "vllm.model_executor.models.nemotron_dllm"


class State:
    """vLLM's state of the model's requests."""

    def __init__(self, vllm_config, model, encoder_cache, device):
        self.model_config, self.device = vllm_config.model_config, device
        self.max_model_len = vllm_config.model_config.max_model_len
        self.diffusion_states = MaskStates(3, LENGTH, LENGTH, MASK)
        self._req_id_to_index = {}

    def custom_sampler(self, sampler):
        return sampler(self.diffusion_states), "rejection"

    def get_supported_generation_tasks(self):
        return ("generate",)

    def add_request(self, req_index, new_req_data):
        self._req_id_to_index[new_req_data.req_id] = req_index
        self.diffusion_states.add_request(req_index)

    def remove_request(self, req_id):
        self.diffusion_states.remove_request(self._req_id_to_index.pop(req_id))


class CausalState:
    pass


class Model:
    """vLLM's model."""

    ar_mode = False

    def get_model_state_cls(self):
        return CausalState if self.ar_mode else State


class Batch(SimpleNamespace):
    @classmethod
    def make_dummy(cls, num_reqs, num_tokens, input_buffers):
        return cls(**vars(batch_of(dict.fromkeys(range(num_reqs), 1))))


@pytest.fixture
def nemotron(monkeypatch, chat):
    vllm_package.installed(monkeypatch)
    modules = {
        FILE: {
            "NemotronLabsDiffusionForBlockDiffusion": Model,
            "NemotronLabsDiffusionModelState": State,
        },
        "vllm.tokenizers": {"cached_tokenizer_from_config": lambda model_config: chat.tokenizer},
        "vllm.v1.worker.gpu.input_batch": {
            "InputBatch": Batch,
            "InputBuffers": lambda *_: None,
        },
    }
    for name, values in modules.items():
        parts = name.split(".")
        for end in range(2, len(parts) + 1):
            path = ".".join(parts[:end])
            if path not in sys.modules:
                monkeypatch.setitem(sys.modules, path, ModuleType(path))
        vars(sys.modules[name]).update(values)
    yield importlib.import_module(NEMOTRON.module)
    del sys.modules[NEMOTRON.module]


@pytest.fixture
def state(nemotron):
    vllm_config = config(NEMOTRON.architecture)
    vllm_config.model_config.hf_config = SimpleNamespace(mask_token_id=MASK)
    made = nemotron.ConstrainedNemotron().get_model_state_cls()
    assert issubclass(made, State)
    return made(vllm_config, None, None, torch.device("cpu"))


def test_the_causal_mode_of_the_model_has_vllms_own_state(nemotron):
    model = nemotron.ConstrainedNemotron()
    model.ar_mode = True
    assert model.get_model_state_cls() is CausalState


@pytest.mark.parametrize("policy", ["confidence_threshold", "low_confidence", "leftmost"])
def test_a_worker_serves_a_request_and_leaves_all_state_as_it_was_after_its_check(
    state, chat, policy
):
    before = {
        name: place.clone()
        for name, place in vars(state.diffusion_states).items()
        if isinstance(place, torch.Tensor)
    }
    numbers = torch.get_rng_state()
    sampler, rejection = state.custom_sampler(lambda states: MaskSampler(states, policy))
    assert isinstance(sampler, MaskedSampler)
    assert rejection == "rejection"
    assert state.diffusion_states.max_denoising_steps == LENGTH
    assert torch.equal(torch.get_rng_state(), numbers)
    for name, values in before.items():
        assert torch.equal(getattr(state.diffusion_states, name), values)
    assert state.get_supported_generation_tasks() == ("generate", TASK)

    vocabulary = vocabulary_of(state.model_config, chat.tokenizer, NEMOTRON)
    compiled = Compiler(vocabulary).compile(Regex("[a-f]{3}"))
    payload = payload_of(compiled, vocabulary.pad, vocabulary.stops, squeezed=[3, 5, 6])
    params = SimpleNamespace(max_tokens=6, extra_args={KEY: payload.data()})
    request = SimpleNamespace(
        req_id="one", prompt_token_ids=[7, 8], prefill_token_ids=[7, 8], sampling_params=params
    )
    state.add_request(1, request)
    sampler(torch.zeros(0, V), batch_of({1: 0}))
    tokens = []
    while not tokens:
        output = sampler(torch.zeros(LENGTH, V), batch_of({1: LENGTH}))
        tokens = output.sampled_token_ids[0, : int(output.num_sampled[0])].tolist()
    end = next(i for i, token in enumerate(tokens) if token in vocabulary.stops)
    Regex("[a-f]{3}").value(vocabulary.text(tokens[:end]))
    assert state._slots.get(1) is None  # it has ended
    assert len(state._slots) == 1
    state.remove_request("one")
    assert len(state._slots) == 0


class Deaf(MaskSampler):
    """A sampler that does not read the logits that the plugin has written."""

    def __call__(self, logits, batch):
        return super().__call__(torch.ones_like(logits).cumsum(-1), batch)


class Renamed(MaskSampler):
    def __init__(self, states):
        super().__init__(states)
        del self.req_states.draft_tokens


@pytest.mark.parametrize("made", [Deaf, Renamed])
def test_a_sampler_that_is_not_as_expected_stays_vllms_own(state, made, caplog):
    sampler, _ = state.custom_sampler(made)
    assert type(sampler) is made
    assert state.get_supported_generation_tasks() == ("generate",)
    assert "constraints are not served: the check" in caplog.text
    assert state.diffusion_states.max_denoising_steps == LENGTH
    params = SimpleNamespace(max_tokens=6, extra_args={KEY: {}})
    state.add_request(
        0,
        SimpleNamespace(
            req_id="one", prompt_token_ids=[7], prefill_token_ids=None, sampling_params=params
        ),
    )
    state.remove_request("one")
