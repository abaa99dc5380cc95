# EmberLM for people who do not live in cargo: `make help` lists the targets.
# Needs cargo, make and a C compiler. GNU make and BSD-like systems with gmake; Linux and macOS
# (Windows: see README.md).

PREFIX     ?= /usr/local
LIBDIR     ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DESTDIR    ?=
CARGO      ?= cargo
CFLAGS     ?= -O2
VALGRIND   ?= valgrind
PROMPT     ?=
ARGS       ?=
FUZZ       ?= gguf

# Pinned, because another version words the header differently. Both are built without optimization, which takes longer than what they do.
CBINDGEN_VERSION   := 0.29.4
CARGO_FUZZ_VERSION := 0.13.2

SPACE      := $() $()
MODEL      := models/hamlet-7m-Q4_K_M.gguf
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
# With PROFILE=dev, C tests and examples use the library that the Rust tests are built with, which costs no other build.
PROFILE    ?= release
ifeq ($(PROFILE),release)
  C_OUT    := $(abspath $(TARGET_DIR))/c
  LIB_OUT  := $(abspath $(TARGET_DIR))/release
else
  C_OUT    := $(abspath $(TARGET_DIR))/c-dev
  LIB_OUT  := $(C_OUT)/lib
endif
TOOLS      := $(abspath $(TARGET_DIR))/tools
CBINDGEN   := $(TOOLS)/cbindgen-$(CBINDGEN_VERSION)/bin/cbindgen
CARGO_FUZZ := $(TOOLS)/cargo-fuzz-$(CARGO_FUZZ_VERSION)/bin/cargo-fuzz
VERSION    := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
SO_VERSION := $(shell sed -n 's/^const SO_VERSION: u32 = \([0-9]*\);/\1/p' build.rs)

ifeq ($(shell uname -s),Darwin)
  SHARED       := libemberlm.dylib
  SHARED_ABI   := libemberlm.$(SO_VERSION).dylib
  SHARED_FULL  := libemberlm.$(VERSION).dylib
  LIBS_PRIVATE := -lSystem -lc -lm
  NM_DEFINED   := nm -gU
  SYMBOL_MARK  := _
else
  SHARED       := libemberlm.so
  SHARED_ABI   := libemberlm.so.$(SO_VERSION)
  SHARED_FULL  := libemberlm.so.$(VERSION)
  LIBS_PRIVATE := -lgcc_s -lutil -lrt -lpthread -lm -ldl
  NM_DEFINED   := nm -D --defined-only
  SYMBOL_MARK  :=
# A crate that this library uses has C functions of its own, which the shared library made by rustc
# would export, too: so it is linked anew, from the static one. Names that are not exported are left out: they are a megabyte.
define LINK_SHARED
@printf '{ global: ember_*; local: *; };\n' > $(LIB_OUT)/emberlm.map
$(CC) -shared -o $(LIB_OUT)/$(SHARED) -Wl,--whole-archive $(LIB_OUT)/libemberlm.a -Wl,--no-whole-archive \
    -Wl,--version-script=$(LIB_OUT)/emberlm.map -Wl,--gc-sections -Wl,--strip-all -Wl,-z,relro,-z,now \
    -Wl,-soname,$(SHARED_ABI) $(LIBS_PRIVATE)
endef
endif

# The C of this repository is held to this, whatever CFLAGS says. Threads need the POSIX names.
C_STRICT := -std=c99 -Wall -Wextra -Wpedantic -Werror -D_POSIX_C_SOURCE=200809L -Iinclude
C_LINK    = -L$(LIB_OUT) -Wl,-rpath,$(LIB_OUT) -lemberlm -lpthread -lm

# The functions that the header declares: the words ember_* followed by a parenthesis; the ones that follow "typedef" or a
# star are types of callbacks.
DECLARED := sed -e 's|/\*.*\*/||g' -e '/\/\*/,/\*\//d' -e 's|//.*||' include/emberlm.h \
    | grep -o 'ember_[a-z0-9_]*(' | tr -d '(' | sort -u

EXAMPLES := $(patsubst examples-c/%.c,$(C_OUT)/examples/%,$(wildcard examples-c/*.c))
C_TESTS  := $(patsubst tests/c/%.c,$(C_OUT)/tests/%,$(wildcard tests/c/*.c))

# The GPU kernels need nvcc, which is fetched where it lacks. CPU_ONLY=1 leaves them out.
ifeq ($(shell uname -s),Darwin)
  CPU_ONLY := 1
endif
NVCC_FETCHED := target/nvcc/nvidia/cu13/bin/nvcc
# Where KERNELS have been made.
NVCC_USED = $(or $(NVCC_FOUND),$(NVCC_FETCHED))
ifdef CPU_ONLY
  FEATURES := --no-default-features
else
  FEATURES :=
  NVCC_FOUND := $(or $(NVCC),$(wildcard $(if $(CUDA_HOME),$(CUDA_HOME)/bin/nvcc)),$(shell command -v nvcc 2>/dev/null),$(wildcard $(NVCC_FETCHED)))
  KERNELS := $(if $(NVCC_FOUND),,nvcc)
endif

# How many of a case's requests for memory fail in a run of test-memory, spread over all of them.
MEMORY_TRIES ?= 150

.PHONY: all lib demo test test-all test-rust test-driver test-emulation test-c test-examples test-memory test-memory-all test-stack valgrind \
        install uninstall header check-header check-symbols check-names bench convert nvcc gpu-bundle fuzz fmt lint clean help

all: lib

help:
	@echo "make                 the release library in $(TARGET_DIR)/release"
	@echo "make demo            compile examples-c/hello.c and let it tell a story (PROMPT='Once upon ...')"
	@echo "make test            Rust tests but the slow ones, C tests, C examples: without GPU kernels, some minutes"
	@echo "make test-all        all Rust tests, GPU kernels on the CPU, C tests also under valgrind, test-memory, test-calls, test-sanitizers"
	@echo "make test-memory     requests for memory fail, up to $(MEMORY_TRIES) in each case of each function; test-memory-all: every one"
	@echo "make test-calls      random sequences of calls of every function; CALLS=$(CALLS) of them, SEED=N as before"
	@echo "make test-sanitizers C tests and random calls with AddressSanitizer and ThreadSanitizer"
	@echo "make test-driver     the GPU backend's host side, with a driver that stands in for the real one"
	@echo "make test-stack      every function on a stack of 64 KB"
	@echo "make check-kernels   the GPU kernels compile for architectures that this build has no code for"
	@echo "make check-platforms the library compiles for Windows, macOS and Android"
	@echo "make test-windows    C tests and examples with the library for Windows, in Wine"
	@echo "make test-macos      archives for macOS: their exports, what they need, programs that link with them; nothing runs"
	@echo "make test-bindings   the bindings for other languages, each where its tools are installed"
	@echo "make bindings        generate the lowest layer of the bindings anew; make python-wheel builds a wheel with the library in it"
	@echo "make install         header, libraries, emberlm.pc (PREFIX, LIBDIR, INCLUDEDIR, DESTDIR); make uninstall"
	@echo "make dist            an archive of libraries, header, CMake and pkg-config files for this machine's platform in $(TARGET_DIR)/dist;"
	@echo "                     dist-all: for $(DIST_PLATFORMS); test-dist uses the first as its receiver would"
	@echo "make header          generate include/emberlm.h and kernels/args_*.h anew; make check-header compares only"
	@echo "make check-symbols   the shared library exports what the header declares and nothing else"
	@echo "make check-names     the header has no names at file scope but ember_* and EMBER_*"
	@echo "make bench           ember-bench on $(MODEL) (ARGS='--shape llama-3.2-1b --quant q4_k_m')"
	@echo "make chain           a program that measures chains of GPU kernels alone, and these, in $(TARGET_DIR)/chain"
	@echo "make convert         ember-convert (ARGS='INPUT OUTPUT.gguf --type q4_k_m')"
	@echo "make gpu-bundle      GPU tests, library and ember-bench in $(TARGET_DIR)/gpu-bundle, for a machine with a GPU"
	@echo "make nvcc            fetch the compiler of the GPU kernels into target/nvcc; done by itself where there is none"
	@echo "                     (CPU_ONLY=1 with any target leaves the GPU kernels out)"
	@echo "make fuzz            fuzz the GGUF reader, or FUZZ=safetensors, model, template, tokenizer, grammar, state or adapter (ARGS='-max_total_time=60')"
	@echo "make fuzz-all        each of them for FUZZ_SECONDS=$(FUZZ_SECONDS)"
	@echo "make fmt lint        rustfmt; clippy with warnings as errors"

RUST_TESTS := $(CARGO) test $(FEATURES) --features tools,bench,test-hooks

lib: $(KERNELS)
ifeq ($(PROFILE),release)
	$(CARGO) build --release --lib $(FEATURES) --features c-library
else
	$(RUST_TESTS) --no-run
	@mkdir -p $(LIB_OUT)
	cp $(TARGET_DIR)/debug/deps/libemberlm.a $(TARGET_DIR)/debug/deps/$(SHARED) $(LIB_OUT)
endif
	$(LINK_SHARED)
	@ln -sf $(SHARED) $(LIB_OUT)/$(SHARED_ABI)

demo: lib $(C_OUT)/examples/hello
	$(C_OUT)/examples/hello $(MODEL) $(if $(PROMPT),"$(PROMPT)")

$(C_OUT)/examples/%: examples-c/%.c include/emberlm.h | lib
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(C_STRICT) $< -o $@ $(C_LINK)

$(C_OUT)/tests/%: tests/c/%.c $(wildcard tests/c/*.h) include/emberlm.h | lib
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -g $(C_STRICT) -UNDEBUG $< -o $@ $(C_LINK)

# What to run before and after a change, in minutes: one build of everything in one profile, without GPU kernels.
test:
	$(MAKE) --no-print-directory test-rust test-c test-examples CPU_ONLY=1 PROFILE=dev SLOW=

# All of it, the library as it is shipped included. CI runs this.
test-all: test-rust test-driver test-emulation test-c test-examples valgrind test-memory test-calls test-sanitizers

# Slow tests look whether EMBERLM_SLOW_TESTS is set; a number above 1 is that of tokens in long texts, which are 10,000 otherwise.
# Tests that are marked `ignore` need the original models, which lie beside a developer's checkout, or in the folder that
# EMBERLM_MINILM names.
SLOW := 1
test-rust: $(KERNELS)
	$(if $(SLOW),EMBERLM_SLOW_TESTS=$(SLOW) )$(RUST_TESTS) $(if $(wildcard ../shared/models/hamlet),-- --include-ignored $(if $(EMBERLM_MINILM),,--skip minilm_agrees))

# The host's side of the GPU backend (memory that is mapped and shared, states, eviction, graphs), with a driver that stands in
# for the real one, and a library that stands in for NCCL. They compute no products, so tests of what a model chooses are left out. The driver
# knows the kernels of kernels/ by name, so that one that the host asks for and that is not there fails. Its pages are a GPU's where tests
# measure memory, and small ones in those that make many sessions. First the proofs that planted defects
# are seen. What a rank of another process chooses comes of a hash of that rank's own heads here, so ranks with several numbers of heads
# (group::gpt2) are left out. Last, two GPUs that cannot reach each other's memory, and those that can, and NCCL that is too old, lacks a function or is not there.
DRIVER := $(C_OUT)/driver
CUDA_TESTS := $(CARGO) test --features tools,bench,test-hooks --test cuda --

test-driver: $(KERNELS)
	@if [ -n "$(CPU_ONLY)" ] || [ "$$(uname -sm)" != "Linux x86_64" ]; then \
	    echo "SKIPPED test-driver: it needs the GPU backend and Linux on x86-64"; exit 0; fi; \
	set -e; mkdir -p $(DRIVER); \
	$(CC) -O2 -shared -fPIC -Wall -Wextra tests/driver/cuda.c -o $(DRIVER)/libcuda.so.1 -lpthread; \
	$(CC) -fsyntax-only -Wall -Wextra -Werror tests/driver/twins.c; \
	ln -sf libcuda.so.1 $(DRIVER)/libcuda.so; \
	bash tests/driver/kernels $(DRIVER)/kernels; \
	for variant in '' -DOLD -DWITHOUT_ABORT; do mkdir -p $(DRIVER)/nccl$$variant; \
	    $(CC) -O2 -shared -fPIC -Wall -Wextra $$variant tests/driver/nccl.c -o $(DRIVER)/nccl$$variant/libnccl.so.2 -lpthread; done; \
	grep -v ' rope_append$$' $(DRIVER)/kernels > $(DRIVER)/kernels.defect; \
	if STAND_IN_KERNELS=$(DRIVER)/kernels.defect LD_LIBRARY_PATH=$(DRIVER) $(CUDA_TESTS) states::forks >/dev/null 2>&1; then \
	    echo "a kernel that is not there was not missed"; exit 1; fi; \
	export STAND_IN_KERNELS=$(DRIVER)/kernels; \
	if STAND_IN_DEFECT=1 LD_LIBRARY_PATH=$(DRIVER) $(CUDA_TESTS) states::forks >/dev/null 2>&1; then \
	    echo "a planted defect of the driver was not seen"; exit 1; fi; \
	for filter in parts_drafts::lives "drafts:: --skip parts_drafts::lives" states:: files:: heads::lives heads::texts heads::recurrent heads::batches heads::late heads::dropped heads::evict heads::placed heads::started heads::memory heads::refused \
        fused::states fused::lives fused::texts fused::hamlet fused::host_experts fused::batches fused::dropped fused::late fused::evict fused::started fused::memory fused::limits fused::handles fused::refused limits:: model::rewind model::queued model::out_of_memory model::memory model::batches \
	        adapters::memory adapters::out_of_memory adapters::batches adapters::others adapters::drafts \
	        adapters::kept parts::adapters_out_of_memory parts::life parts::out_of_memory embed::hamlet_packs embed::input embed::out_of_memory embed::limits \
	        embed::evict embed::interrupt embed::together host_experts::life host_experts::states host_experts::together \
	        host_experts::interrupt host_experts::limits host_experts::placed host_experts::out_of_memory variants::batches variants::forks variants::lives variants::refused; do \
	    page=2097152; case $$filter in *drafts::* | states::) page=65536;; esac; \
	    echo "STAND_IN_PAGE=$$page LD_LIBRARY_PATH=$(DRIVER) $(CUDA_TESTS) $$filter --skip states::across_devices --skip drafts::long_texts --skip drafts::trained --skip parts_drafts::recurrent"; \
	done | sh tests/at_once; \
	STAND_IN_CHUNKS=1 LD_LIBRARY_PATH=$(DRIVER) $(CUDA_TESTS) parts_drafts::chunks; \
	export STAND_IN_DEVICES=2; \
	for peers in 0 1; do for filter in nccl:: "group:: --skip group::gpt2" ranks::life ranks::states ranks::marks ranks::memory ranks::threads \
	    ranks_drafts::lives ranks_drafts::recurrent_marks ranks_drafts::failures ranks_drafts::dropped \
	    ranks_adapters::sessions ranks_adapters::memory; do \
	    page=65536; case $$filter in *memory) page=2097152;; esac; \
	    STAND_IN_PAGE=$$page STAND_IN_PEERS=$$peers LD_LIBRARY_PATH=$(DRIVER):$(DRIVER)/nccl $(CUDA_TESTS) $$filter; done; done; \
	missing() { EMBERLM_NCCL_MISSING="$$1" LD_LIBRARY_PATH=$(DRIVER):$(DRIVER)/$$2 $(CUDA_TESTS) nccl::missing; }; \
	missing "of version 2.17, 2.18 is needed" nccl-DOLD; \
	missing "has no function ncclCommAbort" nccl-DWITHOUT_ABORT; \
	missing "could not be opened" none

# Kernels run on the CPU, under schedules that no GPU would choose. To compile them takes longer than to
# run them, so they are optimized little.
EMULATION_FLAGS := -O1 -std=c++20 -Wall -Wextra -Wno-unknown-pragmas -Wno-sign-compare -Wno-pass-failed \
                   -fno-strict-aliasing -ffp-contract=off -U_FORTIFY_SOURCE -Itests/emulation -Ikernels
EMULATIONS := $(addprefix $(C_OUT)/emulation/,product batch adapters long experts drafts fusion heads own recurrent selective streams texts)

$(C_OUT)/emulation/%: tests/emulation/%.cpp $(wildcard tests/emulation/* kernels/*.cu* kernels/*.h)
	@mkdir -p $(@D)
	$(CXX) $(EMULATION_FLAGS) $< tests/emulation/emulator.cpp -o $@

test-emulation:
	@if ! echo '_Float16 half;' | $(CXX) -std=c++20 -x c++ -fsyntax-only - >/dev/null 2>&1; then \
	    echo "SKIPPED emulation: $(CXX) is no C++20 compiler with _Float16; not run:" $(notdir $(EMULATIONS)); exit 0; \
	fi; set -e; $(MAKE) --no-print-directory -j 2 $(EMULATIONS); \
	printf '%s\n' $(EMULATIONS) | sh tests/at_once

test-c: lib $(C_TESTS)
	@set -e; for t in $(C_TESTS); do echo "C test $${t##*/}"; $$t $(MODEL); done

# A terminal program reads its input from a file here.
test-examples: lib $(EXAMPLES)
	@set -e; for t in $(EXAMPLES); do echo "C example $${t##*/}"; $$t $(MODEL) < examples-c/questions.txt; done

# The program's own malloc, which fails on demand, takes the place of libc's, as glibc allows. It tests the library as it is
# shipped. test-memory-all takes an hour: every request of every case fails, once alone and once with all that follow.
MEMORY_TEST := $(C_OUT)/memory

$(MEMORY_TEST): $(wildcard tests/memory/*.c tests/memory/*.h) include/emberlm.h | lib
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -g -std=gnu11 -Wall -Wextra -Werror -Wno-missing-field-initializers -Iinclude \
	    $(wildcard tests/memory/*.c) -o $@ $(C_LINK) -ldl

$(MEMORY_TEST)-opened: tests/memory/opened/opened.c tests/memory/inject.c tests/memory/inject.h include/emberlm.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -g -std=gnu11 -Wall -Wextra -Werror -Iinclude tests/memory/opened/opened.c tests/memory/inject.c -o $@ -ldl -lpthread

ifneq ($(PROFILE),release)
test-memory test-memory-all:
	@echo "$@ tests the library's own allocator (feature c-library), which the library of PROFILE=$(PROFILE) does not have." >&2
	@echo "Run \`make $@\` without PROFILE; it builds the release library." >&2; exit 1
else ifneq ($(shell getconf GNU_LIBC_VERSION 2>/dev/null),)
test-memory: lib $(MEMORY_TEST) $(MEMORY_TEST)-opened check-cases
	$(MEMORY_TEST) $(MODEL) --defects
	$(MEMORY_TEST)-opened $(LIB_OUT)/$(SHARED)
	$(MEMORY_TEST) $(MODEL) --most $(MEMORY_TRIES)

test-memory-all: lib $(MEMORY_TEST) check-cases
	$(MEMORY_TEST) $(MODEL)
else
test-memory test-memory-all:
	@echo "SKIPPED $@: it needs glibc"
endif

# Each function on a stack of 64 KB.
ifneq ($(shell getconf GNU_LIBC_VERSION 2>/dev/null),)
test-stack: lib $(MEMORY_TEST) check-cases
	$(MEMORY_TEST) $(MODEL) --calls
else
test-stack:
	@echo "SKIPPED $@: it needs glibc"
endif

# What this machine can do for other platforms: see tests/platforms.
.PHONY: check-platforms test-windows
check-platforms: $(KERNELS)
	bash tests/platforms/check $(abspath $(TARGET_DIR))/platforms $(FEATURES)

test-windows:
	bash tests/platforms/windows $(abspath $(TARGET_DIR))/windows $(MODEL)

# Every function of the header has a case.
.PHONY: check-cases
check-cases:
	@mkdir -p $(C_OUT)
	@$(DECLARED) > $(C_OUT)/declared
	@sed -n 's/^    {"\(ember_[a-z0-9_]*\)".*/\1/p' tests/memory/cases.c | sort -u > $(C_OUT)/cases
	diff -u $(C_OUT)/declared $(C_OUT)/cases

# Random sequences of calls of every function, with an oracle of what each may end with (tests/calls). First the proof that each
# of its checks works. SEED=N CALLS=N repeat or lengthen a run.
CALLS      ?= 100000
CALLS_TEST := $(C_OUT)/calls
CALLS_OBJECTS := $(patsubst tests/calls/%,$(C_OUT)/calls.d/%.o,$(wildcard tests/calls/*.c tests/calls/*.cpp))

$(C_OUT)/calls.d/%.c.o: tests/calls/%.c $(wildcard tests/calls/*.h) include/emberlm.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -g -std=gnu11 -Wall -Wextra -Werror -Iinclude -c $< -o $@

$(C_OUT)/calls.d/%.cpp.o: tests/calls/%.cpp $(wildcard tests/calls/*.h) include/emberlm.h
	@mkdir -p $(@D)
	$(CXX) $(CFLAGS) -g -std=c++20 -Wall -Wextra -Werror -Iinclude -c $< -o $@

$(CALLS_TEST): $(CALLS_OBJECTS) | lib
	$(CXX) $(CALLS_OBJECTS) -o $@ $(C_LINK)

.PHONY: test-calls check-calls
ifneq ($(shell getconf GNU_LIBC_VERSION 2>/dev/null),)
test-calls: lib $(CALLS_TEST) check-calls
	@set -e; for defect in status output guard message position twin print leak crash hang; do \
	    if CALLS_DEFECT=$$defect $(CALLS_TEST) $(MODEL) --calls 2000 --seed 1 >$(C_OUT)/calls.defect 2>&1; then \
	        echo "the planted defect '$$defect' was not found"; exit 1; fi; \
	    grep -q '^FAILED' $(C_OUT)/calls.defect || { cat $(C_OUT)/calls.defect; exit 1; }; \
	    echo "planted defect '$$defect': $$(sed -n 's/^FAILED: //p' $(C_OUT)/calls.defect | cut -c 1-90)"; done
	$(CALLS_TEST) $(MODEL) --calls $(CALLS) $(if $(SEED),--seed $(SEED))
else
test-calls:
	@echo "SKIPPED $@: it needs glibc"
endif

# The C tests and $(SANITIZER_CALLS) random calls with AddressSanitizer and ThreadSanitizer in library and tests, or one of them.
SANITIZER_CALLS ?= 10000
SANITIZERS      ?= address thread
.PHONY: test-sanitizers
ifeq ($(shell uname -sm),Linux x86_64)
test-sanitizers:
	@for s in $(SANITIZERS); do \
	    echo "bash tests/sanitizers/run $(abspath $(TARGET_DIR))/sanitizers $(MODEL) $(SANITIZER_CALLS) $$s"; done | sh tests/at_once
else
test-sanitizers:
	@echo "SKIPPED $@: it needs Linux on x86-64"
endif

# Every function of the header is called there.
check-calls:
	@mkdir -p $(C_OUT)
	@$(DECLARED) > $(C_OUT)/declared
	@sed -n 's/^    {"\(ember_[a-z0-9_]*\)", [0-9].*/\1/p' tests/calls/main.cpp | sort -u > $(C_OUT)/called
	diff -u $(C_OUT)/declared $(C_OUT)/called

# First the proof that valgrind sees a bad read, a branch on garbage and a leak in a program built
# and run in this way; then the tests. Only one thread runs at a time there, and one that polls would keep
# the others from running for as long as it likes if they did not take turns.
VALGRIND_RUN := $(VALGRIND) --quiet --fair-sched=try --error-exitcode=99 --leak-check=full \
                --errors-for-leak-kinds=definite,indirect

# The longest ones begin.
VALGRIND_FIRST := $(addprefix $(C_OUT)/tests/,state sampling parts)

valgrind: lib $(C_TESTS) $(C_OUT)/defects
	@if ! command -v $(VALGRIND) >/dev/null 2>&1; then \
	    echo "SKIPPED valgrind: $(VALGRIND) is not installed; not run under it:" \
	        $(notdir $(C_TESTS)); exit 0; \
	fi; set -e; \
	for defect in none read branch leak; do \
	    want=99; if [ $$defect = none ]; then want=0; fi; got=0; \
	    $(VALGRIND_RUN) $(C_OUT)/defects $$defect >/dev/null 2>&1 || got=$$?; \
	    if [ $$got != $$want ]; then \
	        echo "valgrind on defect '$$defect': exit $$got, expected $$want"; exit 1; fi; \
	    echo "valgrind on defect '$$defect': exit $$got, as it should"; \
	done; \
	for t in $(VALGRIND_FIRST) $(filter-out $(VALGRIND_FIRST),$(C_TESTS)); do echo "EMBERLM_SLOW_MACHINE=1 $(VALGRIND_RUN) $$t $(MODEL)"; done | sh tests/at_once

$(C_OUT)/defects: tests/valgrind/defects.c
	@mkdir -p $(@D)
	$(CC) -O0 -g -std=c99 -Wall -Wextra -Wpedantic $< -o $@

# What is installed runs on every GPU; other builds have kernels for one (build/cuda.rs).
install: export EMBERLM_CUDA_ARCHS := $(or $(EMBERLM_CUDA_ARCHS),all)
install: lib $(C_OUT)/emberlm.pc $(C_OUT)/EmberLMConfig.cmake
	install -d "$(DESTDIR)$(INCLUDEDIR)" "$(DESTDIR)$(LIBDIR)/pkgconfig" "$(DESTDIR)$(LIBDIR)/cmake/EmberLM"
	install -m 644 include/emberlm.h "$(DESTDIR)$(INCLUDEDIR)/emberlm.h"
	install -m 644 bindings/cpp/emberlm.hpp "$(DESTDIR)$(INCLUDEDIR)/emberlm.hpp"
	install -m 644 $(LIB_OUT)/libemberlm.a "$(DESTDIR)$(LIBDIR)/libemberlm.a"
	install -m 755 $(LIB_OUT)/$(SHARED) "$(DESTDIR)$(LIBDIR)/$(SHARED_FULL)"
	ln -sf $(SHARED_FULL) "$(DESTDIR)$(LIBDIR)/$(SHARED_ABI)"
	ln -sf $(SHARED_ABI) "$(DESTDIR)$(LIBDIR)/$(SHARED)"
	install -m 644 $(C_OUT)/emberlm.pc "$(DESTDIR)$(LIBDIR)/pkgconfig/emberlm.pc"
	install -m 644 $(C_OUT)/EmberLMConfig.cmake $(C_OUT)/EmberLMConfigVersion.cmake "$(DESTDIR)$(LIBDIR)/cmake/EmberLM"

uninstall:
	rm -f "$(DESTDIR)$(INCLUDEDIR)/emberlm.h" "$(DESTDIR)$(INCLUDEDIR)/emberlm.hpp" "$(DESTDIR)$(LIBDIR)/libemberlm.a" \
	    "$(DESTDIR)$(LIBDIR)/$(SHARED_FULL)" "$(DESTDIR)$(LIBDIR)/$(SHARED_ABI)" \
	    "$(DESTDIR)$(LIBDIR)/$(SHARED)" "$(DESTDIR)$(LIBDIR)/pkgconfig/emberlm.pc"
	rm -rf "$(DESTDIR)$(LIBDIR)/cmake/EmberLM"

# Always made anew: they depend on the directories of this call.
.PHONY: $(C_OUT)/emberlm.pc $(C_OUT)/EmberLMConfig.cmake
$(C_OUT)/emberlm.pc: packaging/emberlm.pc.in
	@mkdir -p $(@D)
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|' \
	    -e 's|@VERSION@|$(VERSION)|' -e 's|@LIBS_PRIVATE@|$(LIBS_PRIVATE)|' packaging/emberlm.pc.in > $@

$(C_OUT)/EmberLMConfig.cmake: packaging/EmberLMConfig.cmake.in packaging/EmberLMConfigVersion.cmake.in
	@mkdir -p $(@D)
	sed -e 's|@CMAKE_INCLUDEDIR@|$(INCLUDEDIR)|' -e 's|@SONAME@|$(if $(filter Darwin,$(shell uname -s)),@rpath/)$(SHARED_ABI)|' \
	    -e 's|@CMAKE_LIBS_PRIVATE@|$(subst $(SPACE),;,$(LIBS_PRIVATE))|' packaging/EmberLMConfig.cmake.in > $@
	sed -e 's|@VERSION@|$(VERSION)|' packaging/EmberLMConfigVersion.cmake.in > $(@D)/EmberLMConfigVersion.cmake

# Archives for machines without Rust: this machine's platform, or all that can be built here. zig links for older and other systems.
DIST           ?= $(abspath $(TARGET_DIR))/dist
DIST_MACOS     := macos-x86_64 macos-aarch64
DIST_PLATFORMS := linux-x86_64 linux-aarch64 windows-x86_64 $(DIST_MACOS)
ZIG_VERSION    := 0.17.1
ZIG            ?= env PYTHONPATH=$(abspath $(TARGET_DIR))/zig $(PYTHON) -m ziglang

.PHONY: dist dist-all test-dist test-macos
$(TARGET_DIR)/zig/ziglang:
	$(PYTHON) -m pip install --quiet --root-user-action=ignore --disable-pip-version-check --no-deps --target $(TARGET_DIR)/zig ziglang==$(ZIG_VERSION)

dist: export EMBERLM_CUDA_ARCHS := $(or $(EMBERLM_CUDA_ARCHS),all)
dist: lib $(TARGET_DIR)/zig/ziglang
	STATIC_LIBRARY=$(LIB_OUT)/libemberlm.a CARGO_OPTIONS="$(FEATURES)" ZIG="$(ZIG)" bash packaging/dist $(DIST) linux-$$(uname -m)

dist-all: export EMBERLM_CUDA_ARCHS := $(or $(EMBERLM_CUDA_ARCHS),all)
dist-all: lib $(TARGET_DIR)/zig/ziglang
	STATIC_LIBRARY=$(LIB_OUT)/libemberlm.a CARGO_OPTIONS="$(FEATURES)" ZIG="$(ZIG)" bash packaging/dist $(DIST) $(DIST_PLATFORMS)

# The archive of this machine's platform, as its receiver uses it.
test-dist: dist
	bash packaging/test $(DIST)/emberlm-$(VERSION)-linux-$$(uname -m).tar.gz $(MODEL)

# The archives for macOS as far as they can be checked without one: what they export and need, and that programs link with them.
test-macos: $(TARGET_DIR)/zig/ziglang
	ZIG="$(ZIG)" bash packaging/dist $(DIST)/macos $(DIST_MACOS)
	@$(DECLARED) > $(DIST)/macos/declared
	ZIG="$(ZIG)" bash packaging/test-macos $(DIST)/macos $(DIST)/macos/declared

$(CARGO_FUZZ):
	$(CARGO) install --debug cargo-fuzz --version =$(CARGO_FUZZ_VERSION) --locked \
	    --root $(TOOLS)/cargo-fuzz-$(CARGO_FUZZ_VERSION)

$(CBINDGEN):
	$(CARGO) install --debug cbindgen --version =$(CBINDGEN_VERSION) --locked \
	    --root $(TOOLS)/cbindgen-$(CBINDGEN_VERSION)

# cbindgen can write the variants of an enum in capitals, but cannot put EMBER_ in front of them.
define MAKE_HEADER
$(CBINDGEN) --quiet --config cbindgen.toml --crate emberlm --output $(C_OUT)/emberlm.h
sed '/^enum ember_status_code/,/^}/s/^    \([A-Z]\)/    EMBER_\1/' $(C_OUT)/emberlm.h > $(C_OUT)/emberlm.h.new
mv $(C_OUT)/emberlm.h.new $(C_OUT)/emberlm.h
endef

header: $(CBINDGEN)
	@mkdir -p $(C_OUT)
	$(MAKE_HEADER)
	cp $(C_OUT)/emberlm.h include/emberlm.h
	bash build/args $(CBINDGEN) kernels

check-header: $(CBINDGEN)
	@mkdir -p $(C_OUT)
	$(MAKE_HEADER)
	diff -u include/emberlm.h $(C_OUT)/emberlm.h
	rm -rf $(C_OUT)/args
	bash build/args $(CBINDGEN) $(C_OUT)/args
	diff -ru --exclude='*.cu*' --exclude=cbindgen.toml kernels $(C_OUT)/args
	@echo "include/emberlm.h and kernels/args_*.h are up to date"

# The header takes no names at file scope but ember_* and EMBER_*. First the proof that planted ones are seen.
check-names:
	@CC="$(CC)" sh tests/names/check.sh include/emberlm.h

check-symbols: lib
	@mkdir -p $(C_OUT)
	@$(NM_DEFINED) $(LIB_OUT)/$(SHARED) | awk 'NF == 3 && $$2 != "A" {print $$3}' \
	    | sed 's/^$(SYMBOL_MARK)//' | sort -u > $(C_OUT)/exported
	@$(DECLARED) > $(C_OUT)/declared
	@test -s $(C_OUT)/exported
	diff -u $(C_OUT)/declared $(C_OUT)/exported
	@abi=$$(sed -n 's/^#define EMBER_ABI_VERSION \([0-9]*\).*/\1/p' include/emberlm.h); \
	    if [ "$$abi" != "$(SO_VERSION)" ]; then \
	        echo "EMBER_ABI_VERSION is '$$abi', but build.rs says $(SO_VERSION)"; exit 1; fi
	@echo "$$(wc -l < $(C_OUT)/exported) symbols exported, all declared in include/emberlm.h; ABI $(SO_VERSION)"

bench: $(KERNELS)
	$(CARGO) build --release $(FEATURES) --features bench --bin ember-bench
	$(TARGET_DIR)/release/ember-bench $(or $(ARGS),$(MODEL))

convert:
	$(CARGO) build --release --no-default-features --features tools --bin ember-convert
	$(TARGET_DIR)/release/ember-convert $(ARGS)

# Everything to test and measure on a machine with a GPU and without Rust: copy the folder there and
# run run.sh (tests, all of them in minutes by "run.sh at-once", then under compute-sanitizer with "run.sh sanitize"). With one GPU, "run.sh twins" runs tests that want two:
# a second context of that GPU is the other one (tests/driver/twins.c).
# With EMBERLM_CUDA_ARCHS=80:90 it has the code of older cards, for a Hopper that EMBERLM_CUDA_CAPABILITY=8.0 makes pretend
# to be one when run.sh or ember-bench runs; so for 75:90 and 7.5, 89:90 and 8.9. The library is as it is shipped and knows nothing of that.
GPU_BUNDLE := $(TARGET_DIR)/gpu-bundle
HOOKED     := --features test-hooks

gpu-bundle: lib
	rm -rf $(GPU_BUNDLE) && mkdir -p $(GPU_BUNDLE)/tests $(GPU_BUNDLE)/models $(GPU_BUNDLE)/include
	cp $(LIB_OUT)/$(SHARED) $(GPU_BUNDLE)
	$(CARGO) build --release $(HOOKED),bench --bin ember-bench
	for test in cuda tasks; do \
	    cp $$($(CARGO) test --no-run $(HOOKED) --test $$test --message-format=json \
	        | sed -n "s/.*\"executable\":\"\([^\"]*\/$$test-[^\"]*\)\".*/\1/p") $(GPU_BUNDLE)/test-$$test || exit 1; \
	done
	strip -g $(GPU_BUNDLE)/test-*
	cp $(LIB_OUT)/ember-bench $(GPU_BUNDLE)
	cp models/*.gguf $(GPU_BUNDLE)/models && cp -r tests/data $(GPU_BUNDLE)/tests
	cp include/emberlm.h $(GPU_BUNDLE)/include && cp tests/cuda/run.sh tests/cuda/at_once.py benches/gpu_table.py $(GPU_BUNDLE)
	mkdir $(GPU_BUNDLE)/twins && $(CC) -shared -x c /dev/null -o $(GPU_BUNDLE)/twins/libcuda_real.so -Wl,-soname,libcuda_real.so
	$(CC) -O1 -shared -fPIC -Wall -Wextra -Werror tests/driver/twins.c -o $(GPU_BUNDLE)/twins/libcuda.so \
	    -Wl,--no-as-needed -L$(GPU_BUNDLE)/twins -l:libcuda_real.so -ldl && rm $(GPU_BUNDLE)/twins/libcuda_real.so
	@echo "$(GPU_BUNDLE) is ready: $$(du -sh $(GPU_BUNDLE) | cut -f1)"

# The compiler of the GPU kernels, from PyPI, where no CUDA toolkit is installed.
NVCC_WHEELS := nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
               nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85

nvcc:
	python3 -m pip install --quiet --no-deps --target target/nvcc $(NVCC_WHEELS)
	chmod +x target/nvcc/nvidia/cu13/bin/* target/nvcc/nvidia/cu13/nvvm/bin/*

# The kernels' sources have a part for each of these.
.PHONY: check-kernels
check-kernels: $(KERNELS)
	bash build/check_kernels $(NVCC_USED) $(abspath $(TARGET_DIR))/ptx 75 80

# What chains of kernels take (benches/chain.cu says how it runs).
CHAIN := $(TARGET_DIR)/chain
CHAIN_KERNELS := product_k attention recurrent own_input
CHAIN_FLAGS := -std=c++20 -O3 --expt-relaxed-constexpr -gencode=arch=compute_90a,code=sm_90a

.PHONY: chain
chain: $(KERNELS)
	@mkdir -p $(CHAIN)
	printf '%s\n' $(CHAIN_KERNELS) | xargs -P 2 -I{} $(NVCC_USED) $(CHAIN_FLAGS) -cubin -o $(CHAIN)/{}.cubin kernels/{}.cu
	$(NVCC_USED) $(CHAIN_FLAGS) -Ikernels -cudart static -L$$(dirname $(NVCC_USED))/../lib benches/chain.cu -o $(CHAIN)/chain

# The sanitizers are in every compiler, but behind a switch that only nightly ones have by default. A run begins with the inputs of
# fuzz/seeds, which are committed, and those of fuzz/corpus, where it keeps what it finds.
FUZZ_TARGETS := gguf safetensors model template tokenizer grammar state adapter
FUZZ_SECONDS ?= 60
FUZZ_DICT_gguf         := -dict=fuzz/gguf.dict
FUZZ_DICT_safetensors  := -dict=fuzz/safetensors.dict
FUZZ_DICT_adapter      := -dict=fuzz/adapter.dict
FUZZ_MAX_gguf          := 8192
FUZZ_MAX_safetensors   := 262144
FUZZ_MAX_state         := 32768
FUZZ_MAX_adapter       := 16384

fuzz: $(CARGO_FUZZ)
	@mkdir -p fuzz/corpus/$(FUZZ)
	RUSTC_BOOTSTRAP=1 $(CARGO_FUZZ) run $(FUZZ) --target-dir $(TARGET_DIR)/fuzz fuzz/corpus/$(FUZZ) fuzz/seeds/$(FUZZ) \
	    -- -rss_limit_mb=2048 $(FUZZ_DICT_$(FUZZ)) -max_len=$(or $(FUZZ_MAX_$(FUZZ)),4096) $(ARGS)

.PHONY: fuzz-build fuzz-all fuzz-inputs fuzz-seeds
fuzz-build: $(CARGO_FUZZ)
	RUSTC_BOOTSTRAP=1 $(CARGO_FUZZ) build --target-dir $(TARGET_DIR)/fuzz

fuzz-all: fuzz-build
	@for target in $(FUZZ_TARGETS); do \
	    echo "$(MAKE) --no-print-directory fuzz FUZZ=$$target ARGS='-max_total_time=$(FUZZ_SECONDS) -print_final_stats=1 $(ARGS)'"; done | sh tests/at_once

# Inputs of every kind, larger than those of fuzz/seeds, to begin with.
FUZZ_EXAMPLE := $(CARGO) run --quiet --manifest-path fuzz/Cargo.toml --target-dir $(TARGET_DIR)/fuzz --example

fuzz-inputs:
	@mkdir -p fuzz/corpus
	$(FUZZ_EXAMPLE) seeds fuzz/corpus/gguf
	$(FUZZ_EXAMPLE) folders fuzz/corpus/safetensors
	$(FUZZ_EXAMPLE) states fuzz/corpus/state
	$(FUZZ_EXAMPLE) adapters fuzz/corpus/adapter

# The smallest inputs of FUZZ's corpus that reach as much as all of it, up to $(SEED_BYTES) bytes each, become its seeds.
SEED_BYTES ?= 2048
fuzz-seeds: $(CARGO_FUZZ)
	@rm -rf fuzz/seeds/$(FUZZ).new && mkdir -p fuzz/seeds/$(FUZZ) fuzz/seeds/$(FUZZ).new
	RUSTC_BOOTSTRAP=1 $(CARGO_FUZZ) run $(FUZZ) --target-dir $(TARGET_DIR)/fuzz fuzz/seeds/$(FUZZ).new fuzz/corpus/$(FUZZ) fuzz/seeds/$(FUZZ) \
	    -- -merge=1 -rss_limit_mb=2048 -max_len=$(SEED_BYTES)
	rm -r fuzz/seeds/$(FUZZ) && mv fuzz/seeds/$(FUZZ).new fuzz/seeds/$(FUZZ)

include bindings/bindings.mk

fmt:
	$(CARGO) fmt

lint: $(KERNELS)
	$(CARGO) clippy --all-targets --all-features -- -D warnings

clean:
	$(CARGO) clean
