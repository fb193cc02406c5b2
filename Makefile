# `make` lists the targets. Whatever a target needs is installed into .venv first; nothing else on the machine changes.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11,\
	$(shell $(p) -c 'import sys; print("$(p)" if sys.version_info >= (3, 11) else "")' 2>/dev/null)))
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
INSTALLED_FOR_DEMO := $(VENV)/installed-for-demo
, := ,
# The environment, unlike an option, reaches the build backend too: the second variable is for pip 25.3 and newer.
PINNED := PIP_CONSTRAINT=$(CURDIR)/constraints.txt PIP_BUILD_CONSTRAINT=$(CURDIR)/constraints.txt
IMAGE ?= gpu-mirage:dev
KUBECTL ?= $(BIN)/kubectl
KUBECONFIG_FLAG = $(if $(CLUSTER),--kubeconfig $(CLUSTER))
# From the fastest to the slowest; of tests/chaos a few rounds.
SUITES := tests/unit tests/property tests/contract tests/integration tests/chaos

.PHONY: help
help: ## List the targets
	@echo 'CLUSTER=<kubeconfig> chooses a cluster for demo, install and uninstall;'
	@echo 'CLUSTER=local means a real control plane for demo and cluster, which is the sandbox otherwise'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

define install
	@[[ -n '$(PYTHON)' ]] || { echo 'Python 3.11 or newer is needed; name it: make PYTHON=/path/to/python3' >&2; exit 1; }
	@[[ -x $(BIN)/python ]] || $(PYTHON) -m venv $(VENV)
	@echo 'installing dependencies into $(VENV)'
	@$(PINNED) $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(1)]'
	@touch $@
endef

$(INSTALLED): pyproject.toml constraints.txt
	$(call install,demo$(,)test$(,)bench)
	@touch $(INSTALLED_FOR_DEMO)

# A part of it, so that the first demo does not wait for what only tests need.
$(INSTALLED_FOR_DEMO): pyproject.toml constraints.txt
	$(call install,demo)

.PHONY: venv
venv: $(INSTALLED) ## Make .venv with everything the project and its tests need

.PHONY: controlplane
controlplane: ## Build the control plane's binaries with Go, once (about ten minutes)
	@hack/controlplane/build.sh

.PHONY: cluster
cluster: $(INSTALLED_FOR_DEMO) $(if $(filter local,$(CLUSTER)),controlplane) ## Start a cluster with simulated nodes, until Ctrl-C
	@$(BIN)/python -m hack.localcluster up $(if $(CLUSTER),--cluster $(CLUSTER))

.PHONY: demo
demo: $(INSTALLED_FOR_DEMO) ## See a simulated estate and a ComputeDomain on it (ONCE=1: end then)
	@$(BIN)/python -m hack.demo $(if $(ONCE),--once) $(if $(CLUSTER),--cluster $(CLUSTER))

.PHONY: test
test: venv ## Run the tests; those on a control plane skip where its binaries are not built
	@log=$$(mktemp); code=0; \
	echo 'the tests on a real control plane run meanwhile, and are shown afterwards'; \
	$(BIN)/python -m pytest -m control_plane $(SUITES) > "$$log" 2>&1 & real=$$!; \
	trap 'kill "$$real" 2> /dev/null || true; rm -f "$$log"' EXIT; \
	$(BIN)/python -m pytest -m 'not control_plane' $(SUITES) || code=$$?; \
	wait "$$real" || code=$$?; \
	cat "$$log"; \
	exit "$$code"

.PHONY: chaos
chaos: venv controlplane ## Kill and partition things, and demand convergence (GPU_MIRAGE_CHAOS_SEED)
	@export GPU_MIRAGE_CHAOS_SEED=$${GPU_MIRAGE_CHAOS_SEED:-$$RANDOM}; \
	echo "GPU_MIRAGE_CHAOS_SEED=$$GPU_MIRAGE_CHAOS_SEED"; \
	GPU_MIRAGE_CHAOS_ROUNDS=$${GPU_MIRAGE_CHAOS_ROUNDS:-30} \
	GPU_MIRAGE_CHAOS_SCHEDULES=$${GPU_MIRAGE_CHAOS_SCHEDULES:-200} \
	GPU_MIRAGE_CHAOS_REAL_SCHEDULES=$${GPU_MIRAGE_CHAOS_REAL_SCHEDULES:-20} \
	$(BIN)/python -m pytest tests/chaos

.PHONY: fuzz
fuzz: venv controlplane ## Play random requests on the sandbox and on kube-apiserver (FUZZ_SEQUENCES, FUZZ_SEED)
	@$(BIN)/python -m tests.contract.fuzz --sequences $${FUZZ_SEQUENCES:-1000} --seed $${FUZZ_SEED:-1}

.PHONY: bench
bench: venv controlplane ## Measure, beside the API server's own figures
	@$(BIN)/python -m hack.bench

.PHONY: lint
lint: venv ## Check style and dependencies
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/deptry .

.PHONY: types
types: venv ## Check types
	@$(BIN)/mypy --strict

.PHONY: layers
layers: venv ## Check which package may import which
	@$(BIN)/lint-imports --no-cache

.PHONY: generate
generate: venv ## Write the generated manifests
	@$(BIN)/python -m hack.generate_rbac

.PHONY: check-generated
check-generated: venv ## Check that the generated manifests are up to date
	@$(BIN)/python -m hack.generate_rbac --check

.PHONY: manifests
manifests: venv ## Build every kustomization
	@for directory in crds $$(find config -name kustomization.yaml -not -path '*/components/*' -printf '%h\n' | sort); do \
		printf '%-28s ' "$$directory"; $(KUBECTL) kustomize "$$directory" | grep -c '^kind:'; \
	done

.PHONY: install
install: venv ## Install CRDs, device classes and controller into a cluster
	@$(KUBECTL) $(KUBECONFIG_FLAG) apply --server-side -k config/default

.PHONY: uninstall
uninstall: venv ## Remove from a cluster all that is ours and nothing else (YES=1: do not ask)
	@$(BIN)/python -m hack.uninstall $(if $(YES),--yes) $(KUBECONFIG_FLAG)

.PHONY: image
image: ## Build the container image
	@docker build --tag $(IMAGE) .
