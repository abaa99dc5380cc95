# Bindings for other languages, and their tests. Included by ../Makefile; from the repository's root.

BINDINGS  := cpp
BIND_OUT   = $(C_OUT)/bindings
REFERENCE  = $(BIND_OUT)/reference.txt
CXX_STRICT := -Wall -Wextra -Wpedantic -Werror -Iinclude

.PHONY: test-bindings $(addprefix test-bindings-,$(BINDINGS)) check-bindings

# All of them; one whose tools lack is skipped by name, one that fails is an error.
test-bindings: check-bindings $(addprefix test-bindings-,$(BINDINGS))

# What the C library answers, which every binding has to answer, too.
$(BIND_OUT)/reference: bindings/common/reference.c include/emberlm.h | lib
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(C_STRICT) $< -o $@ $(C_LINK)

.PHONY: bindings-reference
bindings-reference: $(BIND_OUT)/reference
	@$(BIND_OUT)/reference $(MODEL) > $(REFERENCE)

# Every function of the header is used by every binding.
check-bindings:
	@mkdir -p $(BIND_OUT)
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
