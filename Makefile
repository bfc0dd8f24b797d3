# make up     run everything on this machine and print the address
# make test   install what the tests need and run them all
# make fast   the tests without the slow ones and without a browser
# make lint   style, types, import contracts, system checks, migrations
# make bench  the benchmarks
# make lock   pin the requirements again
# make clean  remove what the commands above made, except the data in .data

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv/bin
WITH_SERVICES := $(VENV)/python -m auditor.embedded run --

.PHONY: up test fast lint bench lock clean environment test-environment chromium
.DEFAULT_GOAL := up

up: environment
	@exec $(VENV)/python -m auditor.up

test: lint chromium
	$(VENV)/python -m pytest

fast: test-environment
	$(VENV)/python -m pytest -m "not slow and not browser"

lint: test-environment
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/lint-imports
	$(VENV)/mypy
	$(WITH_SERVICES) $(VENV)/python manage.py check
	$(WITH_SERVICES) $(VENV)/python manage.py makemigrations --check

bench: test-environment
	$(VENV)/python -m benchmarks.group_metrics
	$(VENV)/python -m benchmarks.catalogue_load
	$(VENV)/python -m benchmarks.green_list
	$(WITH_SERVICES) $(VENV)/python manage.py collectstatic --noinput --verbosity 0
	$(WITH_SERVICES) $(VENV)/python -m benchmarks.journey

lock: environment
	$(VENV)/python tools/lock.py

clean:
	rm -rf .venv staticfiles .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

environment: python
	@$(PYTHON) tools/environment.py requirements.txt

test-environment: python
	@$(PYTHON) tools/environment.py requirements-dev.txt

chromium: test-environment
	@$(VENV)/python tools/chromium.py

.PHONY: python
python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and was not found."; exit 1; }
