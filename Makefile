# The verbs of this house.  Each sets up what it needs in .venv first; a second run starts at once.

DEMO := nalar generate "The lighthouse keeper" --temperature 0.8 --top-k 40 --top-p 0.95 --seed 5 --max-tokens 80
BIN := .venv/bin
# What the kernels must not change runs twice: with them, and on the stages' own apply.
BOTH_PATHS := $(addprefix tests/,faults test_laws.py test_laws_of_memory.py test_formulas.py test_distribution.py test_sampling.py \
	test_sampler.py test_rows.py test_goodness_of_fit.py test_memory_and_coins.py test_keys.py test_generate_many.py \
	test_step.py test_drafts.py test_verify.py)

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## */  make \1	/' | expand -t 20

setup:  ## .venv with Nalar, a model, and the tools for tests and checks
	@sh scripts/python scripts/setup.py dev

check: setup  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/mypy

test: setup kernels  ## every test but the long ones, in two processes
	$(BIN)/python -m pytest -m "not long" -n 2 --dist loadgroup
	NALAR_KERNELS=off $(BIN)/python -m pytest -m "not long" -n 2 --dist loadgroup $(BOTH_PATHS)

test-long: setup kernels  ## every test, the long ones too, with a thousand fresh examples a property: minutes
	$(BIN)/python -m pytest --hypothesis-profile=long -n 2 --dist loadgroup

docs: setup  ## write the generated pages and pictures, then run every example in README, docs and docstrings
	$(BIN)/python scripts/commands_page.py
	$(BIN)/python scripts/order_page.py
	$(BIN)/python scripts/pictures.py
	$(BIN)/python -m pytest tests/test_docs.py tests/test_pages.py tests/test_skeletons.py

bench: setup  ## what a draw costs, beside its peers and the limit: some minutes; writes benchmarks/results.md
	$(BIN)/python -m pip install --quiet --no-input transformers
	$(BIN)/python benchmarks/row.py

kernels:  # compiled for this processor once, about ten seconds, and kept; otherwise the first draw would wait for it
	@test -f .venv/stamps/kernels || echo 'Compiling the kernels for this processor: about ten seconds, the first time only …'
	@$(BIN)/nalar warmup >/dev/null && touch .venv/stamps/kernels

demo:  ## stream text from the bundled model
	@sh scripts/python scripts/setup.py demo
	@$(MAKE) --no-print-directory kernels
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(DEMO)
	@printf '\nThat was (with %s on the PATH):\n\n    %s\n\n' '$(BIN)' '$(DEMO)'

.PHONY: help setup check kernels test test-long docs bench demo
