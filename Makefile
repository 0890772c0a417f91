# Short names for the scripts in scripts/.
.DEFAULT_GOAL := help
.PHONY: help demo check test examples docs drivers features api msrv msk recovery page simulate model chaos chaos-payments bench lint deny fuzz microbench instructions package package-rpm package-test package-rpm-test reproducible services down

comma := ,

help: ## list these targets
	@echo "make TARGET"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do \
		printf '  %-16s %s\n' "$$name" "$$text"; done

demo: ## build and run the demo: orders of a shop reach Kafka (SECONDS=n, DEMO_FLAGS="...")
	@scripts/demo $(if $(SECONDS),--seconds $(SECONDS)) $(DEMO_FLAGS)

check: ## run formatting, clippy, unit tests, the model and a short simulation: no servers, one to two minutes
	@scripts/check

test: ## run every test on a real PostgreSQL and Kafka (TEST_FLAGS="...", KEEP_SERVICES=1, OUTBOX_RELAY_TEST_PG=14)
	@scripts/test $(TEST_FLAGS)

examples: ## run the programs in Go, Java, Python, Rust, TypeScript and with ORMs with the commands of their pages, and read CloudEvents (ONLY=NAME,...)
	@scripts/examples $(if $(ONLY),$(subst $(comma), ,$(ONLY)))

docs: ## update the pages, manual pages, example configuration and unit that are rendered from the code
	@UPDATE_DOCS=1 cargo test --quiet --workspace --features fail-points --locked --lib --test integration --test bench -- \
		config::tests::example config::tests::manual doctor::page error_codes_page man_page metrics_page pages_of_languages unit_file

drivers: ## test the contracts of pg-outbox and pg-idempotency with each driver alone and with all of them
	@scripts/services run --pg-only scripts/features test

features: ## check pg-outbox and pg-idempotency with each feature and driver alone and with all of them, and the relay with the feature aws
	@scripts/features check
	@$(MAKE) --no-print-directory drivers

api: ## compare the public APIs of pg-outbox and pg-idempotency with their api.txt, and check that each item has an example
	@scripts/api check

msrv: ## compile pg-outbox and pg-idempotency with the oldest Rust for each driver, which rustup must have installed
	@scripts/msrv

msk: ## test logins with AWS IAM ([kafka.aws]), which need the feature aws
	@scripts/test --features pg-outbox-relay/aws --lib --test secure -- msk

recovery: ## run the fault tests one at a time with the limits of an idle machine for the time that recovery takes
	@OUTBOX_RELAY_TEST_ALONE=1 RUST_TEST_THREADS=1 scripts/test --test faults --test integration -- \
		--nocapture --skip doctor kafka_ postgres_ fail_points pgbouncer probes takeover held_topics service

page: ## check the status page in a headless Chromium, and keep screenshots in target/page
	@scripts/page

simulate: ## run the simulator with many schedules (SCHEDULES=100000 SEED=1)
	@SCHEDULES=$(or $(SCHEDULES),100000) SEED=$(or $(SEED),1) cargo test --release --package outbox-relay-core --test simulation schedules::whatever_fails -- --nocapture

chaos: ## run random faults on three relays, judged by an independent checker (MINUTES=10, SEED=n, RATE=2000)
	@$(if $(MINUTES),MINUTES=$(MINUTES)) $(if $(SEED),SEED=$(SEED)) $(if $(RATE),RATE=$(RATE)) scripts/chaos

chaos-payments: ## run random faults on examples/payments, checked by SQL (MINUTES=5, SEED=n)
	@$(if $(MINUTES),MINUTES=$(MINUTES)) $(if $(SEED),SEED=$(SEED)) scripts/chaos-payments

bench: ## measure the relay and Debezium, and write docs/benchmarks.md and pages in bench/ (ONLY=PART,... RUNS=3 ROWS=n QUICK=1)
	@scripts/bench $(if $(ONLY),--only $(ONLY)) $(if $(RUNS),--runs $(RUNS)) $(if $(ROWS),--rows $(ROWS)) \
		$(if $(QUICK),--quick) $(BENCH_FLAGS)

# Compiled separately, because it needs no dependencies. A release build of all crates would take longer than the search.
model: ## search the large configurations of the protocol's model (minutes, 1 GB of memory)
	@mkdir -p target
	@rustc --edition 2024 -C opt-level=3 --test crates/relay/tests/model/main.rs -o target/model
	@target/model --ignored --nocapture

lint: ## check formatting, clippy and documentation, with warnings as errors
	@scripts/lint

deny: ## check licenses, bans, sources and advisories of the dependencies with cargo-deny
	@scripts/deny

fuzz: ## search for inputs that break the parsers, with cargo-fuzz (FUZZ_TARGET=headers FUZZ_SECONDS=60)
	@$(if $(FUZZ_SECONDS),FUZZ_SECONDS=$(FUZZ_SECONDS)) scripts/fuzz $(FUZZ_TARGET)

microbench: ## measure nanoseconds per row of each part of the per-row path (PART=session)
	@cargo bench --locked --package outbox-bench --features compare --bench per_row -- $(if $(PART),"$(PART)")

instructions: ## count instructions per row of the same parts with valgrind (PART=session)
	@scripts/instructions $(if $(PART),"$(PART)")

package: ## build the Debian package, the rpm, a tarball and their checksums into target/package (MAINTAINER="Name <address>")
	@scripts/package

package-rpm: ## build only the rpm
	@scripts/package rpm

package-test: ## install, run, upgrade and remove the package in a private Debian (as root; minutes)
	@scripts/package-test

package-rpm-test: ## inspect the rpm, and install, upgrade and remove it in a folder (as root; seconds)
	@scripts/package-rpm-test

reproducible: ## build the tarball of this commit twice in different folders and compare (two release builds)
	@scripts/reproducible

services: ## start the test servers and leave them running
	@scripts/prerequisites
	@scripts/services up
	@scripts/services env

down: ## stop the test servers
	@scripts/services down
