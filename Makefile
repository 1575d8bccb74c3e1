# One verb a target. `make serve` and `make test` need only python3 (3.11 or newer) and make: the rest goes into .venv.
# The tests in a browser need Debian's Chromium besides, and are skipped without it.
#   make serve [MODEL=hub-id|folder|file.gguf] [PORT=8000]

VENV := .venv
BIN := $(VENV)/bin
# Two processes: most tests use one core. A file's tests stay together, for what they share.
PARALLEL := -n 2 --dist loadfile
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# The browser UI, built from web/ into the package. Its tests need it; the server also starts without it.
WEB := chatserve/server/web_dist/index.html
WEB_SOURCES := $(shell find web -type f -not -path 'web/node_modules/*' -not -path 'web/dist/*' -not -path 'web/tests/*')

.PHONY: serve test test-full web screenshots lint bench gpu-check paper references docs clean
.DEFAULT_GOAL := serve

serve: WEB_FLAGS := --optional
serve: $(VENV)/.installed $(WEB)
	@exec $(BIN)/chatserve serve $(MODEL) $(if $(PORT),--port $(PORT))

test: lint $(WEB)
	$(BIN)/python web/build.py --test
	$(BIN)/python -m pytest $(PARALLEL)

test-full: lint $(WEB)
	$(BIN)/python web/build.py --test
	$(BIN)/python -m pytest $(PARALLEL) -m "full or not full"

web: $(WEB)

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed-test
	for script in $(filter-out benchmarks/gpu_check.py,$(wildcard benchmarks/*.py)); do echo "== $$script"; $(BIN)/python $$script || exit 1; done
	$(BIN)/python -m benchmarks.peers

gpu-check: $(VENV)/.installed-test
	$(BIN)/python benchmarks/gpu_check.py

paper: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.paper

references: $(VENV)/.installed-test
	for script in tests/*/record_*references.py; do $(BIN)/python $$script || exit 1; done

screenshots: $(VENV)/.installed-test $(WEB)
	SCREENSHOTS=docs/screenshots $(BIN)/python -m pytest tests/browser/test_browser_default_model.py

docs: $(VENV)/.installed-test
	$(BIN)/python tests/project/test_documents.py

clean:
	rm -rf $(VENV) build dist web/node_modules web/dist $(dir $(WEB)) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# The stamps are newer than what they were made from, so a second run starts at once.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing the packages that the server needs; the first time this takes some minutes"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "Installing the packages that the tests need"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test,bench]'
	@touch $@

$(WEB): $(WEB_SOURCES) | $(VENV)/.installed
	@$(BIN)/python web/build.py $(WEB_FLAGS)

$(BIN)/python:
	@for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	    $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	    $$python -c 'import ensurepip' 2>/dev/null || \
	        { echo "$$python has no venv module; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }; \
	    echo "Making $(VENV) with $$($$python --version)"; exec $$python -m venv $(VENV); \
	done; \
	echo "No Python 3.11 or newer found; name one with: make PYTHON=/path/to/python3" >&2; exit 1
