# `make demo` and `make test` do everything on a fresh machine with Python 3.11, git and make.
# TORCH="--index-url https://download.pytorch.org/whl/cpu" installs torch without CUDA.

PYTHON ?= python3.11
BIN := .venv/bin
TORCHED := .venv/torch
READY := .venv/ready
BYTECODE := .venv/bytecode
STAMP := .venv/installed
UV := $(shell command -v uv)
# Without bytecode, which Python makes for the modules that it imports.
INSTALL := $(if $(UV),$(UV) pip install --quiet --python $(BIN)/python,$(BIN)/pip install --quiet --no-compile)
INSTALL += --constraint constraints.txt
TOKENIZER ?= models/tiny/tokenizer.json
VLLM := .venv-vllm
IN_VLLM := tests/integrations/vllm
SGLANG := .venv-sglang
IN_SGLANG := tests/integrations/sglang
CLIENTS := .venv-clients
IN_CLIENTS := tests/clients
OPENAI_2 := $(IN_CLIENTS)/test_instructor.py $(IN_CLIENTS)/test_llama_index.py
GUIDELLM := $(IN_CLIENTS)/test_guidellm.py
PROMPTFOO := $(IN_CLIENTS)/promptfoo
CLIENT_TESTS := -m pytest -c $(IN_CLIENTS)/pytest.ini --rootdir $(IN_CLIENTS)

demo: $(READY)
	$(BIN)/python scripts/generate.py --stats --schema examples/invoice.json \
	  "Extract invoice_id, customer, total, paid as JSON. Invoice AK-4071 for Silver Robotics came to 218.50 euros and has been paid."

test: $(STAMP)
	$(MAKE) --no-print-directory --jobs 2 lint suite

# With bytecode: each process that a test starts would compile all modules anew.
suite: $(BYTECODE)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder $(CASES)

# Marked tests too, and five times the examples of hypothesis: over half an hour.
test-all: CASES := -m "" --hypothesis-profile exhaustive
test-all: lint suite vectors without-c stress-masked

# What walks along a trie in numpy, where the extension in C is not built.
without-c: $(STAMP)
	DLM_NATIVE=0 $(BIN)/python -m pytest --numprocesses 3 --dist loadfile tests/grammar/masks tests/grammar/parse

# Torch's sums round differently with the width of a CPU's vectors: the tests of numbers once more
# with those of AVX2, and without any. Six minutes of CPU time each.
vectors: $(STAMP)
	for width in avx2 default; do \
	  ATEN_CPU_CAPABILITY=$$width $(BIN)/python -m pytest --numprocesses 3 --dist loadfile \
	    tests/kernels tests/models tests/dlm/logits --ignore tests/kernels/test_compiles.py || exit 1; \
	done

# Masked samplers under models that work against the grammar, with SCHEMAS=FILE: each schema that
# compiles in three combinations of 72, which take turns. Some minutes of CPU time for 261 schemas.
MODELS := random spiteful endless
MASKED := threshold surest edits threshold-prefix surest-prefix edits-prefix
stress-masked: $(STAMP)
ifdef SCHEMAS
	$(BIN)/python scripts/stress.py --schemas $(SCHEMAS) --tokenizer $(TOKENIZER) --share 0.04 \
	  --model $(MODELS) --sampler $(MASKED) --block 4 32 --budget roomy shortest
else
	@echo "stress-masked is skipped. It runs with SCHEMAS=FILE: schemas, one a line, as scripts/stress.py reads them"
endif

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

# What only a GPU can show, in a quarter of an hour: make card OUT=DIR. FLAGS="--tokenizer FILE",
# FLAGS=--dry-run tries it on a CPU.
card: $(STAMP)
	$(BIN)/python scripts/card.py --out $(OUT) $(FLAGS)

# vLLM has versions of its own: an environment apart, on the CPU. SCHEMAS=FILE adds real schemas.
vllm: $(VLLM)/installed
	$(VLLM)/bin/python -m pytest -c $(IN_VLLM)/pytest.ini --rootdir $(IN_VLLM) $(IN_VLLM) \
	  $(if $(SCHEMAS),--schemas $(SCHEMAS)) -s

# SGLang too: its server for diffusion models, on the CPU, with stand-ins for what only a GPU has.
sglang: $(SGLANG)/installed
	$(SGLANG)/bin/python -m pytest -c $(IN_SGLANG)/pytest.ini --rootdir $(IN_SGLANG) $(IN_SGLANG) \
	  $(if $(SCHEMAS),--schemas $(SCHEMAS)) -s

# Real clients, in environments apart: Python's, since some need openai-python 2 and guidellm needs
# torch, and npm's. The server runs in the development environment.
clients: $(STAMP) $(CLIENTS)/installed $(CLIENTS)-openai-2/installed $(CLIENTS)-guidellm/installed \
    $(IN_CLIENTS)/node_modules/installed $(PROMPTFOO)/node_modules/installed
	DLM_PYTHON=$(BIN)/python $(CLIENTS)/bin/python $(CLIENT_TESTS) $(OPENAI_2:%=--ignore %) --ignore $(GUIDELLM) $(IN_CLIENTS)
	DLM_PYTHON=$(BIN)/python $(CLIENTS)-openai-2/bin/python $(CLIENT_TESTS) $(OPENAI_2) $(IN_CLIENTS)/test_recipes.py
	DLM_PYTHON=$(BIN)/python $(CLIENTS)-guidellm/bin/python $(CLIENT_TESTS) $(GUIDELLM)

# The site, in build/site: every page, the API from docstrings, all links and anchors checked.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

install: $(STAMP)

C_FILES := $(wildcard grammar/_*.[ch])

# Whatever asks for torch later must find this one.
$(TORCHED): pyproject.toml setup.py $(C_FILES) constraints.txt
	@echo "Installing torch into .venv, with $(if $(UV),uv,pip) ..."
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@$(INSTALL) torch $(TORCH)
	@touch $(TORCHED)

# What an answer needs, and the server.
$(READY): $(TORCHED)
	@echo "Installing what an answer needs: transformers, xgrammar and dlm with its server ..."
	@$(INSTALL) --editable '.[serve]'
	@touch $(READY)

# What development needs, which is that and more: one installation takes less than two. The links
# give type checkers the import names that setuptools gives Python: dlm.kernels, dlm.grammar,
# dlm.models.
$(STAMP): $(TORCHED)
	@echo "Installing what an answer, tests and the site need ..."
	@$(INSTALL) --editable '.[dev]'
	@for folder in kernels grammar models; do ln -sfn ../$$folder dlm/$$folder; done
	@touch $(READY) $(STAMP)

# Once after an installation, beside lint: each of several processes would compile all that tests
# import, which takes 20 seconds of processor time.
$(BYTECODE): $(STAMP)
	-PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --collect-only --quiet > /dev/null
	@touch $(BYTECODE)

$(VLLM)/installed: pyproject.toml $(IN_VLLM)/environment/requirements.txt
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install --quiet --constraint $(IN_VLLM)/environment/requirements.txt torch
	$(VLLM)/bin/pip install --quiet --no-deps --requirement $(IN_VLLM)/environment/requirements.txt
	$(VLLM)/bin/pip install --quiet --no-deps ./$(IN_VLLM)/environment/triton_cpu --editable .
	$(VLLM)/bin/python $(IN_VLLM)/environment/mend_torchvision.py
	touch $(VLLM)/installed

$(SGLANG)/installed: pyproject.toml $(IN_SGLANG)/environment/requirements.txt
	$(PYTHON) -m venv $(SGLANG)
	$(SGLANG)/bin/pip install --quiet --constraint $(IN_SGLANG)/environment/requirements.txt torch
	$(SGLANG)/bin/pip install --quiet --no-deps --requirement $(IN_SGLANG)/environment/requirements.txt
	$(SGLANG)/bin/pip install --quiet --no-deps ./$(IN_SGLANG)/environment/kernel ./$(IN_SGLANG)/environment/small --editable .
	$(SGLANG)/bin/python $(IN_VLLM)/environment/mend_torchvision.py
	touch $(SGLANG)/installed

$(CLIENTS)/installed: $(IN_CLIENTS)/requirements.txt
$(CLIENTS)-openai-2/installed: $(IN_CLIENTS)/requirements-openai-2.txt
$(CLIENTS)-guidellm/installed: $(IN_CLIENTS)/requirements-guidellm.txt
$(CLIENTS)/installed $(CLIENTS)-openai-2/installed $(CLIENTS)-guidellm/installed:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --requirement $< $(TORCH:--index-url=--extra-index-url)
	touch $@

# Without npm, or without a package, its tests are skipped.
$(IN_CLIENTS)/node_modules/installed: $(IN_CLIENTS)/package.json
	-npm install --prefix $(IN_CLIENTS) --no-package-lock --no-audit --no-fund
	mkdir -p $(@D)
	touch $@

# Without its optional packages, of which there are over a hundred: browsers and clouds.
$(PROMPTFOO)/node_modules/installed: $(PROMPTFOO)/package.json
	-npm install --prefix $(PROMPTFOO) --omit=optional --ignore-scripts --no-package-lock --no-audit --no-fund
	mkdir -p $(@D)
	touch $@

clean:
	rm -rf .venv $(VLLM) $(SGLANG) $(CLIENTS) $(CLIENTS)-openai-2 $(CLIENTS)-guidellm $(IN_CLIENTS)/node_modules $(PROMPTFOO)/node_modules dlm/kernels dlm/grammar dlm/models grammar/_walk*.so

.PHONY: demo test test-all suite vectors without-c stress-masked lint card vllm sglang clients docs install clean
