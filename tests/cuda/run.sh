#!/bin/sh
# Runs the bundled GPU tests, then hamlet's tasks through the C ABI on the default device;
# "run.sh at-once [REGEX]" runs those whose names match, many at a time on all GPUs, "run.sh sanitize" a part of the tests under
# compute-sanitizer, and "run.sh twins [FILTER]" those of GPUs that share the layers of a model, with one GPU as two.
cd "$(dirname "$0")" || exit 1
export EMBERLM_REPOSITORY="$PWD"
if [ "$1" = twins ]; then
    shift
    ln -sf "$(ldconfig -p | sed -n 's/.*=> \(.*libcuda\.so\.1\)$/\1/p' | head -n 1)" twins/libcuda_real.so
    LD_LIBRARY_PATH="$PWD/twins:$LD_LIBRARY_PATH" ./test-cuda --include-ignored "${@:-ranks}"
    exit
fi
# Says in a line how a test ended. SLOT is the number of its lane, of LANES, which share GPUS, if any.
if [ "$1" = one ]; then
    log="$LOGS/$2"
    [ "$GPUS" -eq 0 ] || export CUDA_VISIBLE_DEVICES="$((SLOT % GPUS))"
    # Threads of a model on the CPU are as many as its lane has cores.
    cores=$(($(nproc) / LANES))
    [ "$cores" -gt 0 ] || cores=1
    first=$((SLOT * cores % $(nproc)))
    timeout "${TEST_SECONDS:-300}" taskset -c "$first-$((first + cores - 1))" ./test-cuda --exact "$2" >"$log" 2>&1
    case $? in
    0) if grep -q '^test result: ok. 1 passed' "$log"; then echo "ok $2"; else echo "ignored $2"; fi ;;
    124) echo "FAILED $2 (not done after ${TEST_SECONDS:-300} s)" ;;
    *) echo "FAILED $2" ;;
    esac
    exit
fi
if [ "$1" = at-once ]; then
    LOGS=$(mktemp -d) && export LOGS
    ./test-cuda --list 2>/dev/null | sed -n 's/: test$//p' | grep -E "${2:-.}" >"$LOGS/names"
    [ -s "$LOGS/names" ] || { echo "no test has such a name"; exit 1; }
    touch "$LOGS/results"
    gpus=$(nvidia-smi -L | wc -l)
    # The names with all of some patterns, but without those of others; in so many lanes, on one of so many GPUs each or on all (0).
    lanes() {
        export LANES="$1" GPUS="$2"
        xargs -r -P "$1" --process-slot-var=SLOT -n 1 ./run.sh one | tee -a "$LOGS/results" | grep -v ^ok
    }
    # Some need several GPUs. Some measure free memory, or take all of it, and some what the process before them left.
    several='^(ranks|ranks_drafts|ranks_adapters|nccl|group)::'
    alone='memory|limits|evict|faults|^networks::|^states::'
    grep -Ev "$several" "$LOGS/names" | grep -Ev "$alone" | lanes $((14 * gpus)) "$gpus"
    grep -Ev "$several" "$LOGS/names" | grep -E "$alone" | lanes "$gpus" "$gpus"
    grep -E "$several" "$LOGS/names" | grep -Ev "$alone" | lanes 10 0
    grep -E "$several" "$LOGS/names" | grep -E "$alone" | lanes 1 0
    echo "$(grep -c ^ok "$LOGS/results") passed, $(grep -c ^ignored "$LOGS/results") ignored, of $(wc -l <"$LOGS/names"); logs in $LOGS"
    status=0
    for name in $(sed -n 's/^FAILED \([^ ]*\).*/\1/p' "$LOGS/results"); do
        status=1
        echo "== $name"
        grep -v ^ignored "$LOGS/$name" | tail -n 15
    done
    exit $status
fi
if [ "$1" != sanitize ]; then
    ./test-cuda "$@" && ./test-tasks --nocapture
    exit
fi
status=0
for tool in memcheck racecheck initcheck; do
    for test in matvec::fused batch_f16::fused attention::f16::4_heads_2_kv_64 attention::f16::16_heads_8_kv_64 attention::q8_0::4_heads_2_kv_64 \
        sample::errors model::tiny_shapes; do
        echo "$tool: $test"
        compute-sanitizer --tool "$tool" --error-exitcode 99 ./test-cuda --exact "$test" || status=1
    done
done
exit $status
