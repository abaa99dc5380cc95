#!/bin/sh
# The names that a header puts at file scope, as C and as C++: all must start with ember_ or EMBER_.
#
#     check.sh HEADER
#
# First the proof that planted names are seen. Needs cc, grep and awk. The preprocessor does not get the system's headers but empty
# ones, so that all that is left comes from this header.
set -eu
header=$1
cc=${CC:-cc}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/empty"
for name in stddef stdint; do : >"$work/empty/$name.h"; done
: >"$work/nothing.h"

# Words of C, and types of the two headers. Whatever else stands outside of braces and parentheses is a name that is declared
# or used there; so are tags anywhere, enumerators, and the name of a pointer to a function.
cat >"$work/names.awk" <<'AWK'
BEGIN {
    split("typedef struct enum union extern static const volatile inline signed unsigned void char short int long float double " \
          "bool _Bool C __extension__ __attribute__ noexcept " \
          "size_t int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t uintptr_t intptr_t", list, " ")
    for (i in list) known[list[i]] = 1
}
/^[ \t]*#/ { next }
{
    gsub(/"[^"]*"/, " \" ")
    while (match($0, /[A-Za-z_][A-Za-z_0-9]*|[0-9][A-Za-z_0-9.]*|[^ \t]/)) {
        take(substr($0, RSTART, RLENGTH))
        $0 = substr($0, RSTART + RLENGTH)
    }
}
function take(token) {
    if (token == "{") {
        # A block of extern "C" does not nest.
        if (linkage) blocks++
        else { depth++; enumeration[depth] = in_enum; expected = 1 }
        in_enum = 0
    } else if (token == "}") {
        if (depth > 0) depth--
        else blocks--
    } else if (token == "(") parens++
    else if (token == ")") parens--
    else if (token == ";") { if (depth == 0) in_enum = 0 }
    else if (token ~ /^[A-Za-z_]/) {
        if (token == "enum") in_enum = 1
        tag = before == "struct" || before == "enum" || before == "union"
        pointer = depth == 0 && parens == 1 && before == "*" && before_that == "("
        enumerator = depth > 0 && enumeration[depth] && (before == "{" || before == ",")
        outside = depth == 0 && parens == 0
        if ((tag || pointer || enumerator || outside) && !(token in known) && token !~ /^(ember_|EMBER_)/) print token
    }
    linkage = token == "\"" && before == "extern"
    before_that = before
    before = token
}
AWK

# Prints every name of the header $1 that is not ours.
names() {
    for language in "c -std=c99" "c -std=c11" "c++ -std=c++17"; do
        # A compiler without C++ cannot preprocess it either.
        # shellcheck disable=SC2086
        if ! "$cc" -x $language -E "$work/nothing.h" >/dev/null 2>&1; then
            echo "check-names: not checked as $language: $cc does not know it" >&2
            continue
        fi
        # shellcheck disable=SC2086
        "$cc" -x $language -fsyntax-only "$1" || echo "(not compiled as $language)"
        # shellcheck disable=SC2086
        "$cc" -x $language -E -P -nostdinc -I"$work/empty" "$1" >"$work/text" || echo "(not preprocessed as $language)"
        awk -f "$work/names.awk" "$work/text"
        # shellcheck disable=SC2086
        "$cc" -x $language -E -dM -nostdinc -I"$work/empty" "$work/nothing.h" | sort >"$work/before"
        # shellcheck disable=SC2086
        "$cc" -x $language -E -dM -nostdinc -I"$work/empty" "$1" | sort >"$work/after"
        # EMBERLM_H guards against a second inclusion.
        comm -13 "$work/before" "$work/after" | awk '{sub(/\(.*/, "", $2); print $2}' |
            grep -Ev '^(EMBER_[A-Z0-9_]*|EMBERLM_H)$' || true
    done | sort -u
}

planted=0
while IFS= read -r defect; do
    wanted=${defect%%:*}
    { echo "#include <stddef.h>"; echo "#include <stdint.h>"; echo "${defect#*:}"; } >"$work/planted.h"
    found=$(names "$work/planted.h" 2>/dev/null)
    if [ "$found" != "$wanted" ]; then
        echo "check-names: planted '${defect#*:}', found '$found'" >&2
        exit 1
    fi
    planted=$((planted + 1))
done <<'DEFECTS'
Leak:typedef struct Leak Leak;
Leak:struct Leak { int ember_x; };
LEAK:#define LEAK 1
LEAK:#define LEAK(a) a
EMBER:#define EMBER 1
LEAKED:enum ember_leak { EMBER_FIRST = 1, LEAKED = 2 };
Leaks:enum Leaks { EMBER_FIRST };
leak:int leak(int ember_a);
leak_fn:typedef int (*leak_fn)(void *user);
leak_t:typedef int32_t leak_t;
leak:extern const uint32_t leak;
Leak:struct Leak; void ember_f(const struct Leak *leak);
:typedef enum { EMBER_FIRST = 7, EMBER_LAST } ember_thing;
:int32_t ember_f(const char *path, size_t len, struct ember_error *err);
DEFECTS

found=$(names "$header")
if [ -n "$found" ]; then
    echo "$header has names that do not start with ember_ or EMBER_:" >&2
    echo "$found" >&2
    exit 1
fi
echo "$header has no names at file scope but ember_* and EMBER_* ($planted planted headers were told apart)"
