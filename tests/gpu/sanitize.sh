#!/usr/bin/env bash
# compute-sanitizer on a GPU: first a planted fault that each tool must find, then every kernel, which must be clean.
# Usage: tests/gpu/sanitize.sh LOG_FOLDER
set -u
cd "$(dirname "$0")/../.."
logs=${1:?usage: sanitize.sh LOG_FOLDER}
mkdir -p "$logs"
status=0

check() {  # tool, planted fault
    local log="$logs/$1.log"
    {
        echo "== planted fault: $2"
        compute-sanitizer --tool "$1" --error-exitcode 9 python3 tests/gpu/planted.py "$2"
    } >"$log" 2>&1
    if [ $? -eq 9 ] && grep -q "planted_$2" "$log"; then
        echo "$1: finds the planted fault"
    else
        echo "$1: MISSES the planted fault"; status=1
    fi
    {
        echo "== every kernel of every rung, on awkward shapes and a small network"
        compute-sanitizer --tool "$1" --error-exitcode 9 \
            python3 -m pcnn_bench verify configs/quickstart.yaml --device gpu --quiet &&
        compute-sanitizer --tool "$1" --error-exitcode 9 python3 tests/gpu/ceilings.py
    } >>"$log" 2>&1
    local code=$?
    grep -E "SUMMARY|^rung" "$log" | tail -2
    if [ $code -eq 0 ]; then echo "$1: no error in any kernel"; else echo "$1: exit $code"; status=1; fi
}

check memcheck out_of_bounds
check racecheck race
exit $status
