# The verbs of this house.  Each sets up what it needs in .venv first; a second run starts at once.

DEMO := nalar generate "The lighthouse keeper" --temperature 0.8 --top-k 40 --top-p 0.95 --seed 5 --max-tokens 80
BIN := .venv/bin

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## */  make \1	/' | expand -t 20

setup:  ## .venv with Nalar, a model, and the tools for tests and checks
	@sh scripts/python scripts/setup.py dev

check: setup  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/mypy

test: setup  ## every test but the long ones, in two processes
	$(BIN)/python -m pytest -m "not long" -n 2 --dist loadgroup

test-long: setup  ## every test, the long ones too, with a thousand fresh examples a property: minutes
	$(BIN)/python -m pytest --hypothesis-profile=long -n 2 --dist loadgroup

docs: setup  ## write the generated pages and pictures, then run every example in README, docs and docstrings
	$(BIN)/python scripts/commands_page.py
	$(BIN)/python scripts/order_page.py
	$(BIN)/python scripts/pictures.py
	$(BIN)/python -m pytest tests/test_docs.py tests/test_pages.py tests/test_skeletons.py

bench: setup  ## what a chain's law costs, beside NumPy's max over the same row
	$(BIN)/python benchmarks/apply.py

demo:  ## stream text from the bundled model
	@sh scripts/python scripts/setup.py demo
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(DEMO)
	@printf '\nThat was (with %s on the PATH):\n\n    %s\n\n' '$(BIN)' '$(DEMO)'

.PHONY: help setup check test test-long docs bench demo
