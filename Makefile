# `make demo` and `make test` do everything on a fresh machine with Python 3.11, git and make.

PYTHON ?= python3.11
BIN := .venv/bin
STAMP := .venv/installed

demo: $(STAMP)
	$(BIN)/python scripts/generate.py --stats --schema examples/invoice.json \
	  "Extract invoice_id, customer, total, paid as JSON. Invoice AK-4071 for Silver Robotics came to 218.50 euros and has been paid."

test: $(STAMP)
	$(MAKE) --no-print-directory --jobs 2 lint suite

suite: $(STAMP)
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

install: $(STAMP)

# torch first: whatever asks for torch later must find this one. The links give type checkers
# the import names that setuptools gives Python: dlm.kernels, dlm.grammar, dlm.models.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	for folder in kernels grammar models; do ln -sfn ../$$folder dlm/$$folder; done
	touch $(STAMP)

clean:
	rm -rf .venv dlm/kernels dlm/grammar dlm/models

.PHONY: demo test suite lint install clean
