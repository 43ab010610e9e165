# Plimsoll's tasks. `make help` lists the targets.
#
# Every target first installs what is missing (scripts/setup.sh); on a machine that has it all, that takes no
# time and no network.

CARGO   := scripts/cargo
PREFIX  ?= /usr/local
DESTDIR ?=
# Where systemd looks for units that a package or an administrator installs.
UNITDIR ?= $(PREFIX)/lib/systemd/system
# The Debian package's revision, and whoever passes it on: `Name <address>`.
REVISION ?= 1
export MAINTAINER

# How long `make fuzz` runs each target, and `make soak` in all.
FUZZ_SECONDS ?= 600
SOAK_MINUTES ?= 60

RELEASE := target/release/plimsoll
DEBUG   := target/debug/plimsoll

.DEFAULT_GOAL := help
.PHONY: help fleet python test-python python-check deb image test-packages demo agree faults build test check fmt lint live quiet-unit quiet-checks unit docs-check bench-check deny deny-if-there containers libvirt bench fairnic neighbours virtual-programs program-texts papers guest short-queues fuzz soak doc install clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## build, run noisy-neighbour, receive-flood and heavy-hitter of examples/ on real traffic, print tables, write reports
	@scripts/setup.sh run
	@$(CARGO) build --release --locked -p plimsoll-cli
	@echo '== one host: the neighbours of a tenant flood the link =='
	@$(RELEASE) lab examples/noisy-neighbour.yaml
	@echo '== three hosts: a flood from the network, without and with receivers that tell senders =='
	@$(RELEASE) lab examples/receive-flood.yaml --out report/receive-flood
	@echo '== a gateway: one heavy flow fills its core, without and with each way to slow that flow down =='
	@$(RELEASE) lab --short examples/heavy-hitter.yaml --out report/heavy-hitter

faults: ## show live what faults cost other tenants, with figures: needs root; a minute after the build
	@scripts/setup.sh test
	@$(CARGO) test --locked -p plimsoll-cli --test live --test it -- faults:: kept:: --nocapture --test-threads 1

fleet: ## show what a fleet's directory in etcd costs: 200 hosts with 50 tenants each, and live hosts whose etcd is away: needs root; 2 minutes
	@scripts/setup.sh test
	@PLIMSOLL_TEST_SILENCE=30 $(CARGO) test --locked -p plimsoll-cli --test live -- directory:: --nocapture
	@$(CARGO) run --release --locked -p plimsoll-fleet --features etcd --example churn

agree: ## run tests/agree on Linux and in virtual time, and write their figures into docs/tcp.md: needs root; 40 minutes, idle
	@scripts/setup.sh test
	@$(CARGO) build --release --locked -p plimsoll-cli
	@$(RELEASE) agree tests/agree/*.yaml --write docs/tcp.md

build: ## build the release binary, target/release/plimsoll
	@scripts/setup.sh build
	$(CARGO) build --release --locked -p plimsoll-cli

# The live tests wait for most of their time. They are built first; all else is built and checked beside them, at a lower
# priority, in the time that they leave.
test: ## run all checks: format, lints, unit, property, scenario and live tests, docs and their examples, licences
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory fmt
	@scripts/guest.sh target/guest || echo 'make: no guest to boot: tests with a Linux guest will be skipped' >&2
	@scripts/prometheus.sh target/prometheus || echo 'make: no Prometheus: tests with it will be skipped' >&2
	$(CARGO) test --locked --workspace --test live --no-run
	@$(MAKE) --no-print-directory -j 3 --output-sync=target live quiet-unit quiet-checks
	@[ "$$(id -u)" -eq 0 ] || echo 'make: not root, so the live tests, which make network namespaces, were skipped' >&2

check: ## run this before a commit: format, lints and unit tests, without the live tests
	@scripts/setup.sh build
	@$(MAKE) --no-print-directory fmt lint
	$(CARGO) test --locked --workspace --lib

fmt:
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path benches/Cargo.toml --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(CARGO) fmt --manifest-path python/Cargo.toml --check
	$(CARGO) fmt --manifest-path sdk/rust/Cargo.toml --check

lint:
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

# Each crate's tests/live, which measure. Chosen by name, as `-p` would build other crates again with fewer features.
live:
	$(CARGO) test --locked --workspace --test live

# Unit tests leave a core idle for much of their time; what is only compiled fills it. Cargo has one compile at a time.
quiet-unit:
	@nice -n 10 $(MAKE) --no-print-directory unit

quiet-checks:
	@for target in lint docs-check bench-check deny-if-there; do \
		nice -n 12 $(MAKE) --no-print-directory $$target || exit; \
	done

# All but tests/live: no other test target has a name that begins with `l` (tests/docs/tests/it/makefile.rs).
unit:
	$(CARGO) test --locked --workspace --lib --bins --test '[!l]*'
	$(CARGO) test --locked --workspace --doc
	$(CARGO) test --manifest-path sdk/rust/Cargo.toml --target-dir target/sdk

# With the examples, so that third-party crates have the features that `lint` has checked them with.
docs-check:
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --workspace --no-deps --lib --bins --examples

# The benches are a workspace of their own. Without their default feature they need no DPDK, so they can be linted on
# any machine; `make bench` builds all of them.
bench-check:
	$(CARGO) clippy --locked --manifest-path benches/Cargo.toml --target-dir target --no-default-features --all-targets -- -D warnings

# Checking for security advisories needs the network, so it is not included.
deny: ## check licences, bans and sources with cargo-deny (the first time takes minutes to install it)
	@scripts/setup.sh deny
	$(CARGO) deny --locked check --hide-inclusion-graph licenses bans sources

# Installing cargo-deny takes minutes, so `make test` uses it only where it is installed. The licences that crates'
# manifests state are tested on every machine: tests/docs/tests/it/licences.rs.
deny-if-there:
	@if $(CARGO) deny --version >/dev/null 2>&1; then \
		$(MAKE) --no-print-directory deny; \
	else \
		echo 'make: cargo-deny is not installed: only the licences that manifests state were checked;' >&2; \
		echo 'make: `make deny` installs it and checks licence files, bans and sources, too' >&2; \
	fi

# Installing container engines changes the machine's firewall and starts services, so `make test` uses them only where they are.
containers: ## install Docker and Podman where they are missing, and test `plimsoll attach`, `plimsoll-cni` and `plimsoll docker-plugin` with them, containerd and cnitool
	@scripts/setup.sh containers
	$(CARGO) test --locked --workspace --test it -- ::engines:: --nocapture

# `make test` leaves it out: libvirt is a service, and a machine without KVM takes its time.
libvirt: ## install libvirt where it is missing, and test `plimsoll attach --domain` with a machine in QEMU: needs root; a minute after the build
	@scripts/setup.sh libvirt
	@scripts/guest.sh target/guest
	$(CARGO) test --locked --workspace --test it -- libvirt:: --ignored --nocapture

bench: ## measure Plimsoll beside DPDK, tc, ns-3 and a copy loop; prints a table, writes target/bench.json
	@scripts/setup.sh bench
	@$(CARGO) build --release --locked -p plimsoll-cli
	@GLIBC_TUNABLES=glibc.malloc.hugetlb=1 $(CARGO) run --release --locked --manifest-path benches/Cargo.toml -- --plimsoll $(RELEASE) --json target/bench.json

WASM = clang --target=wasm32 -O2 -mbulk-memory -nostdlib -Wl,--no-entry -I sdk/c -o $@ $<

# Examples of programs, harmful ones included, as the scenario names them.
target/programs/%.wasm: examples/programs/%.c sdk/c/plimsoll.h
	@mkdir -p target/programs
	$(WASM)

target/programs/%.wasm: examples/programs/hostile/%.c sdk/c/plimsoll.h
	@mkdir -p target/programs
	$(WASM)

neighbours: ## show live what tenants notice of a neighbour's program that never ends, traps, or fills its memory: needs root; 3 minutes
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory $(patsubst %,target/programs/%.wasm,endless trap greedy many forger)
	@$(CARGO) build --release --locked -p plimsoll-cli
	@status=0; for file in neighbours crowd; do $(RELEASE) lab examples/programs/$$file.yaml || status=1; done; exit $$status

# FairNIC's experiments that run live, with the programs that they name.
target/programs/resizer-%.wasm: examples/programs/resizer.c sdk/c/plimsoll.h
	@mkdir -p target/programs
	$(WASM) -DSIZE=$*

target/programs/spin-%.wasm: examples/programs/fairnic/spin.c sdk/c/plimsoll.h
	@mkdir -p target/programs
	$(WASM) -DCOST=$*

target/programs/calls-%.wasm: examples/programs/fairnic/calls.c sdk/c/plimsoll.h
	@mkdir -p target/programs
	$(WASM) -DBYTES=$*

target/programs/%.wasm: examples/programs/fairnic/%.c sdk/c/plimsoll.h
	@mkdir -p target/programs
	$(WASM)

FAIRNIC = resizer-1024 resizer-512 resizer-256 spin-4 spin-8 spin-16 spin-32 spin-64 calls-20 calls-1280 cache switch strider zip

fairnic: ## repeat FairNIC's experiments live, with real programs: needs root and an idle machine; 2 minutes
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory $(patsubst %,target/programs/%.wasm,$(FAIRNIC))
	@$(CARGO) build --release --locked -p plimsoll-cli
	@status=0; for experiment in examples/programs/fairnic/*.yaml; do $(RELEASE) lab $$experiment || status=1; done; exit $$status

virtual-programs: ## run tenants' programs, hostile ones included, in virtual time, and check what their neighbours notice: seconds
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory $(patsubst %,target/programs/%.wasm,endless trap greedy many forger reflector resizer)
	@$(CARGO) build --release --locked -p plimsoll-cli
	@$(RELEASE) sim examples/programs/virtual.yaml
	@$(RELEASE) sim examples/programs/crowd.yaml

program-texts: ## write anew the programs that examples carry as text, from their C sources, with this machine's clang
	@scripts/setup.sh test
	UPDATE_GOLDEN=1 $(CARGO) test --locked -p plimsoll-offload --test it -- texts::

papers: ## repeat the papers' experiments at their scale in virtual time, with 5 seeds, and check each expectation: 5 minutes
	@scripts/setup.sh build
	@$(CARGO) build --release --locked -p plimsoll-cli
	@$(RELEASE) papers

# The environment that `make python` installs the package into.
VENV = target/python

python: ## build the Python package, a wheel in target/wheels, and install it into the virtual environment target/python
	@scripts/setup.sh python
	@scripts/python.sh $(VENV)

test-python: python-check build python ## test the Python package beside the command line, on Ray with two workers, and its tutorial: minutes
	$(VENV)/bin/mypy --config-file python/pyproject.toml python/plimsoll
	$(VENV)/bin/stubtest plimsoll._native
	PLIMSOLL=$(CURDIR)/$(RELEASE) $(VENV)/bin/python -m pytest -c python/pyproject.toml --rootdir python python/tests

python-check:
	$(CARGO) clippy --locked --manifest-path python/Cargo.toml --target-dir target --all-targets -- -D warnings

guest: ## build the Linux guest that tests boot in QEMU: kernel and initramfs, in target/guest
	@scripts/setup.sh test
	@scripts/guest.sh target/guest

short-queues: ## compare `flows: fq` with Linux's fq_codel in a Linux guest, in QEMU: 6 minutes
	@scripts/setup.sh test
	@$(CARGO) build --release --locked -p plimsoll-cli
	@scripts/short-queues.sh $(RELEASE)

fuzz: ## fuzz frames, vnet headers, overlays, feedback, sealed frames, policy files, vNICs, virtual machines' rings, programs and engine traces, FUZZ_SECONDS (600) each
	@scripts/setup.sh fuzz
	@fuzz/run.sh $(FUZZ_SECONDS)

soak: ## repeat property tests with many cases, then the demo, for SOAK_MINUTES (60)
	@scripts/setup.sh run
	@SOAK_MINUTES=$(SOAK_MINUTES) scripts/soak.sh

doc: ## build the API documentation, target/doc/plimsoll_nic/index.html and its neighbours
	@scripts/setup.sh build
	$(CARGO) doc --locked --workspace --no-deps

install: build ## install binary, man pages, completions, systemd unit, schemas, alert rules and board (PREFIX, DESTDIR)
	@scripts/install.sh $(RELEASE) '$(DESTDIR)' '$(PREFIX)' '$(UNITDIR)'

deb: build ## build the Debian package, target/packages/*.deb (REVISION, MAINTAINER)
	@scripts/deb.sh $(RELEASE) target/packages '$(REVISION)'

image: build ## build a container image for Docker, Podman and the like, target/packages/*.oci.tar; needs no container engine
	@scripts/image.sh $(RELEASE) target/packages

test-packages: build ## install, upgrade and remove the Debian package in a bare Debian with systemd, and start the image: needs root; minutes (OLD)
	@scripts/setup.sh packages
	@scripts/test-packages.sh $(RELEASE) target/packages $(OLD)

clean: ## remove everything that was built
	$(CARGO) clean
	rm -rf benches/target fuzz/target report
