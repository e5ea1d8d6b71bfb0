# Thin: every target is one command; what it does is in tools/.
#   make demo      build, then train digits on two ranks beside one rank
#   make fsdp      train a book on two ranks, replicated and sharded, and draw loss and memory of both
#   make test      build and run every test on the CPU, then those of tests/gpu where a GPU and a build of them are (make cuda); the last line counts
#                  them, and says whether GPU tests ran
#   make test-full the same, with faults put at many more places, and Muster built as shared libraries within a project
#   make test-services installs MLflow, tensorboard, SLURM and validators of jobs, and tries what we write for them
#   make test-large trains 400 million parameters in less memory than a rank of replicated training needs
#   make bench-gpu measures steps, loaders and checkpoints where a GPU is, in the build of `make cuda`; ON=cpu tries the same programs on the CPU
#   make cuda      builds library and tests against LibTorch's CUDA build, which it puts into .venv-cuda; needs no CUDA toolkit
# Variables:
#   TORCH_INDEX=https://download.pytorch.org/whl/cpu   the index to take LibTorch from (plain pip elsewhere brings the CUDA build)
#   TORCH=/path/to/torch      use this LibTorch instead of installing one
#   BUILD=build  JOBS=2       where to build, and how many compilers at once
#   FUZZ_SECONDS=180          how long each reader is fuzzed
#   TEST=name  BENCH=name     run one test program, or one benchmark
BUILD ?= build
JOBS ?=
TORCH ?=
TORCH_INDEX ?=
PREFIX ?= /usr/local
export BUILD JOBS TORCH TORCH_INDEX CUDA_INDEX ON

.PHONY: all setup build demo fsdp test test-full test-large test-services cuda sanitize fuzz bench bench-gpu clang tidy format install clean

all: build

setup:
	@tools/setup.sh

build: setup
	@tools/build.sh

demo: setup
	@tools/build.sh example_demo muster_cli
	@tools/demo.sh

fsdp: setup
	@tools/build.sh example_fsdp muster_cli
	@tools/fsdp.sh

test: build
	@python3 tools/run_tests.py $(BUILD) $(TEST) --without large --gpu build-cuda

test-full: build
	@tools/build.sh checkpoint_bench data_bench
	@MUSTER_TEST_FULL=1 python3 tools/run_tests.py $(BUILD) $(TEST) --without large --patience 8 --gpu build-cuda

test-large: build
	@python3 tools/run_tests.py $(BUILD) --label large

test-services: export SETUP_WISHED = munge slurm-client slurmctld slurmd
test-services: build
	@tools/setup.sh mlflow tensorboard pyyaml kubernetes_validate botocore
	@MUSTER_TEST_SERVICES=1 python3 tools/run_tests.py $(BUILD) mlflow_parity tensorboard_parity submit slurm

cuda:
	@tools/cuda.sh

sanitize: setup
	@tools/sanitize.sh

fuzz: export SETUP_ALSO = clang-16 libclang-rt-16-dev
fuzz: setup
	@tools/fuzz.sh $(FUZZ)

bench: setup
	@tools/bench.sh $(BENCH)

bench-gpu:
	@tools/bench_gpu.sh $(BENCH)

clang: export SETUP_ALSO = clang-16
clang: setup
	@BUILD=$(BUILD)-clang CMAKE_ARGS="-DCMAKE_CXX_COMPILER=clang++-16 -DCMAKE_CXX_FLAGS=-Werror=thread-safety $(CMAKE_ARGS)" tools/build.sh

tidy: setup
	@tools/tidy.sh

format: setup
	@git ls-files '*.h' '*.cpp' | xargs .venv/bin/clang-format -i

install: build
	@cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	@rm -rf $(BUILD) $(BUILD)-*
