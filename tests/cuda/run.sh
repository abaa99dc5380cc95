#!/bin/sh
# Runs the bundled GPU tests, then hamlet's tasks through the C ABI on the default device;
# "run.sh at-once [REGEX]" runs those whose names match, many at a time on all GPUs (at_once.py), "run.sh sanitize" a part of the tests under
# compute-sanitizer, and "run.sh twins [FILTER]" those of GPUs that share the layers of a model, with one GPU as two.
cd "$(dirname "$0")" || exit 1
export EMBERLM_REPOSITORY="$PWD"
if [ "$1" = twins ]; then
    shift
    ln -sf "$(ldconfig -p | sed -n 's/.*=> \(.*libcuda\.so\.1\)$/\1/p' | head -n 1)" twins/libcuda_real.so
    LD_LIBRARY_PATH="$PWD/twins:$LD_LIBRARY_PATH" ./test-cuda --include-ignored "${@:-ranks}"
    exit
fi
if [ "$1" = at-once ]; then
    shift
    exec python3 at_once.py "$@"
fi
if [ "$1" != sanitize ]; then
    ./test-cuda "$@" && ./test-tasks --nocapture
    exit
fi
status=0
for tool in memcheck racecheck initcheck synccheck; do
    for test in matvec::fused batch_f16::fused attention::f16::4_heads_2_kv_64 attention::f16::16_heads_8_kv_64 attention::q8_0::4_heads_2_kv_64 \
        sample::errors adapters::mixtral adapters::deepseek_v3; do
        # Products of prompts read whole tiles, also of rows that are not there, whose sums nobody stores.
        case "$tool $test" in "initcheck adapters::"*) continue ;; esac
        echo "$tool: $test"
        compute-sanitizer --tool "$tool" --error-exitcode 99 ./test-cuda --exact "$test" || status=1
    done
done
exit $status
