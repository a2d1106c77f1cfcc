# Every target that needs the environment sets it up first; when it is up to date, that takes a tenth of a second.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
# What the user's shell adds to Python's path must not shadow the pinned packages. Without byte code, each process of
# the tests compiles detloom again, and pytest rewrites the assertions of all tests.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONDONTWRITEBYTECODE
# TensorFlow's start-up chatter; errors still show. An exported value of the user's wins.
export TF_CPP_MIN_LOG_LEVEL ?= 3

# Two workers, each with up to 4 GB. Each file runs in one worker, so that expensive fixtures are built once.
# ARGS=-n0 puts all in one process.
PARALLEL := -n logical --maxprocesses 2 --dist loadfile
DEFAULT := not slow and not nightly and not meta and not cluster and not flink and not object_stores

.PHONY: help
help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  PYTHON=/path/to/python3.13 picks the interpreter, TFX_LINE=1.21 or 1.16 the TFX line, ARGS=... goes to the tool."

.PHONY: venv
venv: ## find a Python and build .venv (done by the others when needed); ACCELERATOR=gpu adds NVIDIA's libraries
	@bash scripts/setup_venv.sh

.PHONY: demo
demo: venv ## digits on photographs: data in, blessed and pushed model out
	@$(BIN)/detloom demo $(ARGS)

.PHONY: test
test: venv ## the default tests, about five minutes on two cores
	@$(BIN)/pytest $(PARALLEL) $(ARGS)

.PHONY: test-unit
test-unit: venv ## the default tests that need neither TensorFlow nor TFX, in one process
	@$(BIN)/pytest --block-tensorflow -m "$(DEFAULT) and not needs_tensorflow" $(ARGS)

.PHONY: test-tfx
test-tfx: venv ## the default tests that load TFX or Beam
	@$(BIN)/pytest -m "$(DEFAULT) and needs_tfx" $(PARALLEL) $(ARGS)

.PHONY: test-meta
test-meta: venv ## tests of documentation, scripts and the tests' own tools
	@$(BIN)/pytest -m "meta and not slow and not nightly" $(ARGS)

# Not by the number of tests in a file: the longest runs are alone in theirs, and would be left for the end.
.PHONY: test-slow
test-slow: venv ## the end-to-end tests that CI runs
	@$(BIN)/pytest -m slow --timeout 1800 $(PARALLEL) --no-loadscope-reorder $(ARGS)

.PHONY: test-nightly
test-nightly: venv ## the tests that are too long for CI
	@DETLOOM_GENERATED_SEED=$$(date +%Y%m%d) $(BIN)/pytest -m nightly --timeout 3600 $(ARGS)

.PHONY: test-all
test-all: export ALLOW_SKIP := 1
test-all: test test-meta test-slow test-nightly check docs-site wheel-test test-debian13 ## everything that this machine can run (hours)

.PHONY: check
check: venv dev ## lint, format, types, layering; changes no file
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy | sed 's,^\.dev/detloom/,,' # the links' targets
	@$(BIN)/pytest -q tests/test_layering.py

.PHONY: fmt
fmt: venv ## sort imports, fix what ruff can fix, format
	@$(BIN)/ruff check --fix --exit-zero --quiet .
	@$(BIN)/ruff format .

.PHONY: dev
dev: ## link the folders to .dev/detloom for type checkers and editors
	@bash scripts/link_dev.sh

.PHONY: wheel-test
wheel-test: venv ## build sdist and wheel, install the wheel elsewhere, smoke-test it there
	@bash scripts/wheel_test.sh

.PHONY: test-debian13
test-debian13: ## tests and demo on the TFX 1.21 line in a Debian 13 folder (root, debootstrap)
	@bash scripts/test_debian13.sh $(ARGS)

.PHONY: image
image: ## build the container image with podman or docker (BASE_IMAGE=..., ACCELERATOR=gpu, ...: scripts/image_build.sh)
	@bash scripts/image_build.sh

.PHONY: image-base
image-base: ## make a Debian base image where none can be pulled (root, debootstrap)
	@bash scripts/image_base.sh

.PHONY: test-image
test-image: venv ## build the image, then run the demo's job for Kubeflow in it, one container a task
	@bash scripts/test_image.sh $(ARGS)

.PHONY: test-cluster
test-cluster: venv ## tests on a cluster with Kubeflow Pipelines: KUBECONFIG=file KFP_HOST=http://... IMAGE=... (NAMESPACE=kubeflow, ROOT=minio://...)
	@KUBECONFIG="$(KUBECONFIG)" DETLOOM_TEST_KFP_HOST="$(KFP_HOST)" DETLOOM_TEST_IMAGE="$(IMAGE)" \
		DETLOOM_TEST_NAMESPACE="$(NAMESPACE)" DETLOOM_TEST_ROOT="$(ROOT)" \
		$(BIN)/pytest -v -m cluster --durations=0 --timeout 3600 tests/cluster $(ARGS)

.PHONY: test-flink
test-flink: venv ## tests on a Flink cluster in network namespaces of this machine (root, Java 17, Maven; BCCD_DIR=... uses its images)
	@$(BIN)/python scripts/flink_cluster.py run -- $(BIN)/pytest -v -m flink --durations=0 --timeout 3600 tests/flink $(ARGS)

.PHONY: test-flink-debian13
test-flink-debian13: venv ## the same with Python workers of the TFX 1.21 line, in the folder of test-debian13
	@bash scripts/test_flink_debian13.sh $(ARGS)

.PHONY: test-object-stores
test-object-stores: venv ## the demo and single commands with servers of gs:// and s3:// (Linux, Go for the first build)
	@bash scripts/object_stores.sh $(BIN)/pytest -v -m object_stores --durations=0 --timeout 1800 tests/object_stores $(ARGS)

.PHONY: bench
bench: venv ## the benchmarks, one script a claim; by hand: time_to_map (hours), bench-accelerator
	@for script in $(filter-out %/time_to_map.py %/digits_on_photographs.py %/accelerator.py,$(wildcard benchmarks/*.py)); do echo "== $$script"; $(BIN)/python "$$script"; done

.PHONY: bench-accelerator
bench-accelerator: venv ## on a machine with a GPU or a TPU: parity and speed on one page (ARGS="--preset efficientdet_d0 --out DIR"; --small: CPU)
	@$(BIN)/python benchmarks/accelerator.py $(ARGS)

.PHONY: peer-odapi
peer-odapi: ## build the Object Detection API's environment (Python 3.9, 2.2 GB) for the benchmarks beside it
	@bash benchmarks/peers/build_odapi.sh

.PHONY: parity
parity: venv ## compare with the Object Detection API's values and write docs/parity.md's table
	@DETLOOM_PARITY_TABLE=docs/parity.md $(BIN)/pytest -q -m "slow or not slow" tests/trainer_module/parity $(ARGS)

.PHONY: docs
docs: venv ## write the generated pages of docs/ and tests/public_api.txt (ARGS=ZOO_DIR: the zoo's too)
	@$(BIN)/python scripts/config_reference.py
	@$(BIN)/python scripts/command_reference.py
	@$(BIN)/python scripts/public_api.py
	@$(BIN)/python scripts/reliability_page.py
	@$(BIN)/python scripts/pipeline_config_docs.py $(ARGS)

.PHONY: docs-site
docs-site: ## build site/ from docs/ with MkDocs (in .venv-docs); fails at a dead link
	@bash scripts/docs_site.sh

.PHONY: constraints
constraints: ## write the versions and hashes of constraints/*.txt again (needs uv; UPGRADE=0 keeps versions)
	@bash scripts/expand_constraints.sh

.PHONY: audit
audit: venv ## search the packages in constraints/ that .venv's Python needs for known vulnerabilities (needs pypi.org)
	@bash scripts/audit.sh $(ARGS)

.PHONY: clean
clean: ## remove caches and build products; keeps .venv, .venv-docs and runs
	@rm -rf build dist site .dev .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	@find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +
