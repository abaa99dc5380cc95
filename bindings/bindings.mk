# Bindings for other languages, and their tests. Included by ../Makefile; from the repository's root.

BINDINGS  := cpp python go csharp node swift
PYTHON    ?= python3
GO        ?= go
BIND_OUT   = $(C_OUT)/bindings
REFERENCE  = $(BIND_OUT)/reference.txt
CXX_STRICT := -Wall -Wextra -Wpedantic -Werror -Iinclude

.PHONY: test-bindings $(addprefix test-bindings-,$(BINDINGS)) bindings check-bindings python-wheel

# All of them; one whose tools lack is skipped by name, one that fails is an error.
test-bindings: check-bindings $(addprefix test-bindings-,$(BINDINGS))

# What the C library answers, which every binding has to answer, too.
$(BIND_OUT)/reference: bindings/common/reference.c include/emberlm.h | lib
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(C_STRICT) $< -o $@ $(C_LINK)

.PHONY: bindings-reference
bindings-reference: $(BIND_OUT)/reference
	@$(BIND_OUT)/reference $(MODEL) > $(REFERENCE)

# Sizes, offsets and numbers of the header, as the C compiler sees them.
.PHONY: bindings-layout
bindings-layout:
	@mkdir -p $(BIND_OUT)
	@$(PYTHON) bindings/common/generate.py --layout > $(BIND_OUT)/layout.c
	@$(CC) $(C_STRICT) $(BIND_OUT)/layout.c -o $(BIND_OUT)/layout && $(BIND_OUT)/layout > $(BIND_OUT)/layout.txt

# The lowest layer of the bindings is generated from the header.
bindings:
	$(PYTHON) bindings/common/generate.py

# It is up to date, and every function of the header is used by every binding.
check-bindings:
	@mkdir -p $(BIND_OUT)
	@$(PYTHON) bindings/common/generate.py --check
	@$(DECLARED) > $(BIND_OUT)/declared
	@sh bindings/common/coverage.sh $(BIND_OUT)/declared

# The sanitizer must see a planted defect, and nothing in the test.
test-bindings-cpp: bindings-reference
	@command -v $(CXX) >/dev/null 2>&1 || { echo "SKIPPED test-bindings-cpp: $(CXX) is not installed"; exit 0; }; set -e; \
	for standard in c++17 c++20; do \
	    $(CXX) -std=$$standard $(CXX_STRICT) bindings/cpp/test.cpp -o $(BIND_OUT)/test-$$standard $(C_LINK); \
	    echo "C++ binding, $$standard"; $(BIND_OUT)/test-$$standard $(MODEL) $(REFERENCE); \
	done; \
	for example in chat stream json; do \
	    $(CXX) -std=c++17 $(CXX_STRICT) bindings/cpp/$$example.cpp -o $(BIND_OUT)/cpp-$$example $(C_LINK); \
	    echo "C++ example $$example"; $(BIND_OUT)/cpp-$$example $(MODEL) < examples-c/questions.txt; \
	done; \
	asan="-std=c++17 -g -O1 -fsanitize=address,undefined -fno-sanitize-recover"; \
	if ! echo 'int main() { int *p = new int[2]; delete[] p; return p[1]; }' \
	    | $(CXX) -w $$asan -x c++ - -o $(BIND_OUT)/asan 2>/dev/null; then \
	    echo "SKIPPED test-bindings-cpp under AddressSanitizer: $(CXX) has none"; exit 0; fi; \
	if $(BIND_OUT)/asan >/dev/null 2>&1; then echo "AddressSanitizer does not see a planted defect"; exit 1; fi; \
	$(CXX) $$asan $(CXX_STRICT) bindings/cpp/test.cpp -o $(BIND_OUT)/test-asan $(C_LINK); \
	echo "C++ binding, AddressSanitizer"; $(BIND_OUT)/test-asan $(MODEL) $(REFERENCE)

# A wheel with the library in it, for this platform.
WHEELS := $(C_OUT)/bindings/wheels

python-wheel: lib
	@mkdir -p $(WHEELS) && rm -f $(WHEELS)/*.whl
	@EMBERLM_LIBRARY=$(LIB_OUT)/$(SHARED) $(PYTHON) bindings/python/build_wheel.py $(WHEELS)

# The wheel as pip installs it; neither the sources nor the library's folder are in sight.
test-bindings-python: bindings-reference bindings-layout python-wheel
	@$(PYTHON) -m pip --version >/dev/null 2>&1 || { echo "SKIPPED test-bindings-python: $(PYTHON) has no pip"; exit 0; }; set -e; \
	rm -rf $(BIND_OUT)/site; \
	$(PYTHON) -m pip install --quiet --root-user-action=ignore --disable-pip-version-check --no-index --no-deps --target $(BIND_OUT)/site $(WHEELS)/*.whl; \
	unset EMBERLM_LIBRARY; export PYTHONPATH=$(BIND_OUT)/site EMBERLM_MODEL=$(abspath $(MODEL)); \
	echo "Python binding"; \
	EMBERLM_REFERENCE=$(REFERENCE) EMBERLM_LAYOUT=$(BIND_OUT)/layout.txt $(PYTHON) -W error bindings/python/tests/test_emberlm.py; \
	for example in chat stream json_answer; do \
	    echo "Python example $$example"; $(PYTHON) bindings/python/examples/$$example.py $(MODEL) < examples-c/questions.txt; \
	done

# A package description of the library where it lies.
$(BIND_OUT)/pkgconfig/emberlm.pc: packaging/emberlm.pc.in
	@mkdir -p $(@D)
	@sed -e 's|@PREFIX@|$(CURDIR)|' -e 's|@LIBDIR@|$(LIB_OUT)|' -e 's|@INCLUDEDIR@|$(CURDIR)/include|' \
	    -e 's|@VERSION@|$(VERSION)|' -e 's|@LIBS_PRIVATE@|$(LIBS_PRIVATE)|' packaging/emberlm.pc.in > $@

# With the race detector if it can see a planted race.
test-bindings-go: bindings-reference $(BIND_OUT)/pkgconfig/emberlm.pc
	@for tool in $(GO) pkg-config; do \
	    command -v $$tool >/dev/null 2>&1 || { echo "SKIPPED test-bindings-go: $$tool is not installed"; exit 0; }; \
	done; set -e; \
	export PKG_CONFIG_PATH=$(BIND_OUT)/pkgconfig CGO_LDFLAGS=-Wl,-rpath,$(LIB_OUT) GOFLAGS=-mod=mod GODEBUG=cgocheck=2; \
	export GOCACHE=$(BIND_OUT)/go-cache EMBERLM_MODEL=$(abspath $(MODEL)) EMBERLM_REFERENCE=$(REFERENCE); \
	race=-race; \
	if ! $(GO) build -race -o $(BIND_OUT)/go-race bindings/go/testdata/race.go 2>/dev/null; then \
	    echo "SKIPPED test-bindings-go -race: no race detector here"; race=; \
	elif $(BIND_OUT)/go-race 2>/dev/null; then echo "the race detector does not see a planted race"; exit 1; fi; \
	cd bindings/go; unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "gofmt: $$unformatted"; exit 1; fi; \
	$(GO) vet ./...; $(GO) test $$race -count=1 ./...; \
	for example in chat stream json; do \
	    echo "Go example $$example"; $(GO) run ./examples/$$example $(abspath $(MODEL)) < ../../examples-c/questions.txt; \
	done

CSHARP := bindings/csharp/EmberLM.cs bindings/csharp/Native.cs

test-bindings-csharp: bindings-reference bindings-layout
	@for tool in mcs mono; do \
	    command -v $$tool >/dev/null 2>&1 || { echo "SKIPPED test-bindings-csharp: $$tool is not installed"; exit 0; }; \
	done; set -e; mkdir -p $(BIND_OUT)/csharp; export LD_LIBRARY_PATH=$(LIB_OUT); \
	mcs -langversion:7 -warnaserror -out:$(BIND_OUT)/csharp/test.exe $(CSHARP) bindings/csharp/tests/Test.cs; \
	echo "C# binding"; mono $(BIND_OUT)/csharp/test.exe $(MODEL) $(REFERENCE) $(BIND_OUT)/layout.txt; \
	for example in Chat Stream Json; do \
	    mcs -langversion:7 -warnaserror -out:$(BIND_OUT)/csharp/$$example.exe $(CSHARP) bindings/csharp/examples/$$example.cs; \
	    echo "C# example $$example"; mono $(BIND_OUT)/csharp/$$example.exe $(MODEL) < examples-c/questions.txt; \
	done

# koffi, whose version and checksum package-lock.json has, comes from npm's registry where it is not installed yet.
test-bindings-node: bindings-reference bindings-layout
	@for tool in node npm; do \
	    command -v $$tool >/dev/null 2>&1 || { echo "SKIPPED test-bindings-node: $$tool is not installed"; exit 0; }; \
	done; set -e; \
	test -d bindings/node/node_modules/koffi || (cd bindings/node && npm ci --silent --no-audit --no-fund); \
	export EMBERLM_LIBRARY=$(LIB_OUT)/$(SHARED) EMBERLM_MODEL=$(abspath $(MODEL)); \
	echo "Node binding"; \
	EMBERLM_REFERENCE=$(REFERENCE) EMBERLM_LAYOUT=$(BIND_OUT)/layout.txt node --expose-gc --test bindings/node/tests/; \
	for example in chat stream json; do \
	    echo "Node example $$example"; node bindings/node/examples/$$example.js $(MODEL) < examples-c/questions.txt; \
	done

# Swift imports C through clang's modules, which clang alone can check. First the proof that it reads the module map: without it, there is
# no such module.
SWIFT_CHECK = clang -fsyntax-only -fmodules -fmodules-cache-path=$(BIND_OUT)/modules -Wall -Wextra -Werror -Iinclude

test-bindings-swift:
	@command -v clang >/dev/null 2>&1 || { echo "SKIPPED test-bindings-swift: clang is not installed"; exit 0; }; set -e; \
	mkdir -p $(BIND_OUT); \
	if $(SWIFT_CHECK) bindings/swift/tests/import.m 2>/dev/null; then echo "clang finds a module that is not there"; exit 1; fi; \
	$(SWIFT_CHECK) -fmodule-map-file=bindings/swift/Sources/CEmberLM/module.modulemap bindings/swift/tests/import.m; \
	echo "Swift's module map: clang imports it"; \
	if ! command -v swift >/dev/null 2>&1; then echo "SKIPPED test-bindings-swift with Swift itself: swift is not installed"; exit 0; fi; \
	cd bindings/swift && swift package --scratch-path $(BIND_OUT)/swift describe
