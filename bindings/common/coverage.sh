#!/bin/sh
# Every function that the header declares is used by every binding, except for those that are named here.
# usage: coverage.sh declared.txt (one name a line)
set -eu
declared=$1
status=0
check() { # name files...
    name=$1
    shift
    used=$(cat "$@" | sed -e 's|//.*||' | grep -oE '\b(C\.go_)?ember_[a-z0-9_]+' | sed 's/^C\.go_//' | sort -u)
    missing=$(echo "$used" | comm -23 "$declared" - | grep -vxE "$without" || true)
    if [ -n "$missing" ]; then
        echo "the $name binding does not use:" $missing
        status=1
    fi
}
without="none"
check C++ bindings/cpp/emberlm.hpp
check Python bindings/python/emberlm/_core.py bindings/python/emberlm/_library.py
check Go bindings/go/emberlm.go bindings/go/load.go bindings/go/session.go
check 'C#' bindings/csharp/EmberLM.cs
# The log's messages come from threads that the event loop would have to serve while it is in a call.
without=ember_set_log_callback
check Node bindings/node/index.js
[ $status = 0 ] && echo "the bindings use all $(wc -l <"$declared") functions of the header, Node all but $without"
exit $status
