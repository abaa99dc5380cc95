#!/bin/sh
# Every function that the header declares is used by every binding, and nothing is used that it does not declare.
# usage: coverage.sh declared.txt (one name a line)
set -eu
declared=$1
status=0
check() { # name files...
    name=$1
    shift
    used=$(cat "$@" | sed -e 's|//.*||' | grep -oE '\b(C\.go_)?ember_[a-z0-9_]+' | sed 's/^C\.go_//' | sort -u)
    missing=$(echo "$used" | comm -23 "$declared" -)
    if [ -n "$missing" ]; then
        echo "the $name binding does not use:" $missing
        status=1
    fi
}
check C++ bindings/cpp/emberlm.hpp
check Python bindings/python/emberlm/_core.py bindings/python/emberlm/_library.py
check Go bindings/go/emberlm.go bindings/go/session.go
check 'C#' bindings/csharp/EmberLM.cs
[ $status = 0 ] && echo "every binding uses all $(wc -l <"$declared") functions of the header"
exit $status
