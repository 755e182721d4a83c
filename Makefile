# Commands for people: `make demo`, `make test`. The first one sets up .venv, once.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
# Without its cache Python compiles all sources in each of the hundreds of processes of the tests.
unexport PYTHONDONTWRITEBYTECODE
READY := .venv/ready
TENSORFLOW = OMP_NUM_THREADS=1 TF_CPP_MIN_LOG_LEVEL=2 CUDA_VISIBLE_DEVICES=-1 .venv/tensorflow/bin/python

# A session leaves its connection to the controller to the end of its process; a crew is one process.
UNCLOSED = -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning

.PHONY: laws bench-layouts bench-pages bench-server browser docs screenshots test-browser demo demo-aws test test-slow test-tensorflow test-integrations test-cuda check fuzz-agent sweep-worlds chaos interruptions crash crash-mutants replicas openapi poison schemathesis money money-mutants bench-agent bench-stacks bench-agent-tf bench-resize bench-resize-tf bench-orders bench-plan bench-ingest bench-scale bench-offers bench-slow-cloud bench-streams bench-clouds telemetry bench-large-batch paper clean

demo: $(READY)  ## Train, search, resize and remember, on this machine
	@$(BIN)/scavenger demo

demo-aws: $(READY)  ## The same job on machines of a stand-in for EC2 on this computer; Linux only
	@$(BIN)/python -m tests.machines

test:  ## All checks, and all tests but the slow ones
	@$(MAKE) --no-print-directory --jobs 2 $(READY) browser
	@$(MAKE) --no-print-directory .venv/tensorflow/ready > .venv/tensorflow.log 2>&1 & installs=$$!; \
	$(MAKE) --no-print-directory check > .venv/check.log 2>&1 & checks=$$!; \
	$(MAKE) --no-print-directory .venv/compiled; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder --hypothesis-profile repeatable; tests=$$?; \
	wait $$installs || { cat .venv/tensorflow.log; exit 1; }; \
	wait $$checks || { cat .venv/check.log; exit 1; }; \
	[ $$tests = 0 ] || exit $$tests; \
	$(TENSORFLOW) -m pytest -n 2 --dist loadfile --no-loadscope-reorder tests/tensorflow $(UNCLOSED)

test-browser: $(READY) browser  ## All tests of the dashboard, in a real browser
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/browser -m "slow or not slow"

browser:  ## Chromium for the tests of the dashboard, where it is missing
	@for name in chromium chromium-browser google-chrome; do command -v $$name > /dev/null && exit 0; done; \
	command -v apt-get > /dev/null || { echo "a browser is missing: install Chromium or Chrome"; exit 1; }; \
	root=$$([ "$$(id -u)" = 0 ] || echo sudo); echo "installing chromium for the tests of the dashboard"; \
	$$root apt-get update -qq > /dev/null && \
	$$root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core > /dev/null || \
	{ echo "chromium could not be installed: install it, or Chrome, and run this again"; exit 1; }

screenshots: $(READY) browser  ## Pictures of every page in build/screenshots, and of some in the documentation
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.browser.pictures build/screenshots

bench-pages: $(READY) browser  ## Weight and speed of the pages, with 1 000 jobs and ten million records
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.bench.pages

test-slow: $(READY)  ## Tests marked slow: faults that take minutes to reproduce
	@$(BIN)/python -m pytest -m slow

test-integrations: $(READY) .venv/trainers/ready  ## Trainers and readers of other projects, in an environment of their own
	@OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 .venv/trainers/bin/python -m pytest tests/integrations

test-tensorflow: $(READY) .venv/tensorflow/ready  ## All tests of TensorFlow, the slow ones too, in an environment of their own
	@$(TENSORFLOW) -m pytest tests/tensorflow $(UNCLOSED) -m "slow or not slow"

# A machine with a GPU has a PyTorch of its own, and perhaps no network to set .venv up.
test-cuda:  ## Times, waits, noise and weights on this machine's GPU; CUDA_PYTHON names a Python with PyTorch for it
	@OMP_NUM_THREADS=1 $(or $(CUDA_PYTHON),$(BIN)/python) -m tests.cuda

check: $(READY)  ## Style, types, names, prose and layers
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/python -m tests.checks
	@$(BIN)/lint-imports --no-cache > .venv/layers.log || { cat .venv/layers.log; exit 1; }

docs: $(READY)  ## The documentation as a site in site/, with every link checked
	@$(BIN)/python -m docs.build site

laws: $(READY)  ## Every law over inputs that are others each time
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 tests/laws

fuzz-agent: $(READY)  ## 10 000 sessions of odd scripts and controllers; about an hour
	@FUZZ_SESSIONS=10000 $(BIN)/python -m pytest tests/laws/test_session_fuzz.py

sweep-worlds: $(READY)  ## Garbage collection on 10 000 random clouds; about a quarter of an hour
	@SWEEP_WORLDS=10000 $(BIN)/python -m pytest tests/laws/test_sweep_laws.py

chaos: $(READY) $(if $(filter tensorflow,$(FRAMEWORK)),.venv/tensorflow/ready)  ## 200 random plans of resizes under faults; SEEDS=n plays fewer; FRAMEWORK=tensorflow trains with Keras
	@$(if $(filter tensorflow,$(FRAMEWORK)),$(TENSORFLOW),$(BIN)/python) -m tests.chaos --seeds $(or $(SEEDS),200) --framework $(or $(FRAMEWORK),pytorch)

interruptions: $(READY)  ## Machines taken back at every moment, with and without notice; CELL=train:notice:leader plays one
	@$(BIN)/python -m tests.interruptions $(if $(CELL),--cell $(CELL))

crash: $(READY)  ## SIGKILL of the controller after every effect and at every executed line, and 300 pairs; about an hour; POINT=launch:123 plays one again; CLOUD=aws or google plays a sample with that provider (KILLS, PAIRS, SEED)
	@$(BIN)/python -m tests.crash $(if $(POINT),--point $(POINT)) $(if $(CLOUD),--cloud $(CLOUD) --kills $(or $(KILLS),40) --pairs $(or $(PAIRS),20)) $(if $(SEED),--seed $(SEED))

replicas: $(READY)  ## Three controllers and 40 jobs: 12 kill -9, and Postgres restarted every 5 to 40 s; PACE=2 takes twice as long
	@$(BIN)/python -m tests.replicas --jobs $(or $(JOBS),40) --kills $(or $(KILLS),12) --pace $(or $(PACE),1)

crash-mutants: $(READY)  ## Injected bugs that only a kill at the right line reveals
	@$(BIN)/python -m tests.crash.mutants

money: $(READY)  ## 5 000 runs of everything that may happen to a job's money; about half an hour; CLOUD=aws or google plays RUNS (500) with that provider
	@MONEY_CLOUD=$(or $(CLOUD),fake) MONEY_RUNS=$(or $(RUNS),$(if $(CLOUD),500,5000)) $(BIN)/python -m pytest tests/money

money-mutants: $(READY)  ## Injected bugs, each of which `make money` must find
	@$(BIN)/python -m tests.money.mutants

openapi: $(READY)  ## Rewrite docs/openapi.json after a change of the API
	@$(BIN)/python -m tests.contract.snapshot
	@$(BIN)/python -m tests.contract.dashboard_types

schemathesis: $(READY)  ## Test the API against its OpenAPI description; about ten minutes
	@$(BIN)/python -m tests.contract --examples $(or $(EXAMPLES),100)

poison: $(READY)  ## Every malformed value at every place of every request body
	@POISON_ONE_IN=1 $(BIN)/python -m pytest tests/integration/test_poison.py

bench-agent: $(READY)  ## CPU time of the agent against plain DDP
	@$(BIN)/python -m tests.bench.agent

bench-resize: $(READY)  ## Seconds of a live resize beside torchrun's elastic restart
	@$(BIN)/python -m tests.bench.resize

bench-stacks: $(READY)  ## Throughput of each execution stack, and what compiling takes, cold and with shared code
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.bench.stacks $(ARGS)

bench-agent-tf: $(READY) .venv/tensorflow/ready  ## CPU and wall time of a TensorFlow session, and of the hooks of agent run, against MultiWorkerMirroredStrategy
	@$(TENSORFLOW) -m tests.bench.agent_tf

bench-resize-tf: $(READY) .venv/tensorflow/ready  ## Seconds without training at a resize with TensorFlow: session, parameter servers, restart
	@$(TENSORFLOW) -m tests.bench.resize_tf

bench-layouts: $(READY)  ## Iterations of each layout beside their forecast, and the pause of a change of workers
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.bench.layouts

bench-server: $(READY)  ## Round trip of the parameter servers beside gloo; Downpour beside a slow replica
	@OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo $(BIN)/python -m tests.bench.server

bench-orders: $(READY)  ## Seconds from a user's order to the published Directive that obeys it
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.bench.orders

bench-plan: $(READY)  ## Time to plan over 100 000 configurations, beside a naive loop
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.bench.planning

bench-ingest: $(READY) .venv/mlflow/ready  ## Records per second into the controller, beside MLflow's tracking server
	@$(BIN)/python -m tests.bench.ingest

bench-scale: $(READY)  ## Duration of a pass, a collection and the list pages with 200 jobs, 1 000 machines, ten million records
	@$(BIN)/python -m tests.bench.scale

bench-offers: $(READY)  ## Seconds that a client takes to list 5 000 offers of four clouds, and 20 by a filter
	@$(BIN)/python -m tests.bench.offers

bench-slow-cloud: $(READY)  ## Latency of the controller while its cloud hangs for two minutes, and while it answers
	@$(BIN)/python -m tests.bench.slow_cloud

bench-streams: $(READY)  ## Latency of requests and events, and iterations of a job, beside fifty event streams
	@$(BIN)/python -m tests.bench.streams

bench-clouds: $(READY)  ## Launches per second, a pass, lists and pages with 1 000 machines on EC2 and Compute Engine
	@$(BIN)/python -m tests.bench.clouds

telemetry: $(READY)  ## 1 000 000 records through kills, lost and repeated requests; each must be stored once
	@$(BIN)/python -m tests.telemetry

bench-large-batch: $(READY)  ## Accuracy and epochs at eight times the batch, by learning-rate rule
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.bench.large_batch

paper: $(READY)  ## Figures and statements of the paper beside ours; FRESH=1 trains again
	@$(BIN)/python -m tests.paper $(if $(FRESH),--fresh)

# In a fresh clone each of the processes that test would compile all tests and all that they import.
.venv/compiled: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --collect-only > /dev/null
	@touch $@

.venv/mlflow/ready: tests/bench/mlflow.txt $(READY)
	@$(BIN)/python -m venv .venv/mlflow
	@.venv/mlflow/bin/pip install --no-compile --quiet --disable-pip-version-check -r tests/bench/mlflow.txt
	@touch $@

# It sees .venv, too, so that PyTorch is installed once.
.venv/tensorflow/ready: tests/tensorflow/requirements.txt tests/tensorflow/without-dependencies.txt $(READY)
	@$(BIN)/python -m venv .venv/tensorflow
	@{ pwd; $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; } > \
		"$$(.venv/tensorflow/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/venv.pth"
	@.venv/tensorflow/bin/pip install --no-compile --quiet --disable-pip-version-check -r tests/tensorflow/requirements.txt
	@.venv/tensorflow/bin/pip install --no-compile --quiet --disable-pip-version-check --no-deps -r tests/tensorflow/without-dependencies.txt
	@touch $@

.venv/trainers/ready: tests/integrations/requirements.txt $(READY)
	@$(BIN)/python -m venv .venv/trainers
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
		"$$(.venv/trainers/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/venv.pth"
	@.venv/trainers/bin/pip install --no-compile --quiet --disable-pip-version-check -r tests/integrations/requirements.txt
	@touch $@

clean:  ## Delete .venv
	rm -rf .venv

# Python compiles a package when it is first imported: half of what is installed never is (`--no-compile`).
# The installation builds the dashboard when its sources have changed.
$(READY): requirements.lock pyproject.toml $(shell find service/dashboard/src service/dashboard/*.* -type f)
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: install it, or name it with make PYTHON=..."; exit 1; }
	@echo "setting up .venv with $$($(PYTHON) --version); this takes a few minutes once"
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv || { rm -rf .venv; \
		echo "venv is missing: on Debian and Ubuntu, apt install python3-venv"; exit 1; }
	@$(BIN)/pip install --no-compile --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/pip install --no-compile --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(READY)
