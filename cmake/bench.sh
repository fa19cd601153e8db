#!/bin/sh
# Runs every benchmark of the default build: cmake/bench.sh [FILTER], or `make bench FILTER=...`; only lines whose name contains
# FILTER are measured. Each writes JSON objects, one a line, to its standard output (tests/bench/README.md says what they mean);
# they are printed as they come and appended to build/bench.jsonl. What is for people goes to stderr. STRICT=1 fails where a goal
# is missed.
set -u
cd "$(dirname "$0")/.."
filter=${1:-${FILTER:-}}
names="
  ps.push_4mb.sgd.shm ps.push_4mb.adagrad.shm ps.pull_4mb.shm ps.push_4mb.sgd.tcp ps.pull_4mb.tcp
  ps.push_pull.shm.cpu_s_per_gb ps.push_4b.shm.p50 ps.steady_state.allocations ps.steady_state.page_faults
  async.speedup_2_workers async.time_to_accuracy_2_workers optimizer.overhead_world1
  worker.page_faults_per_step worker.step_over_plain launcher.start_ms server.rss_mb
  allreduce.40mb.2ranks.zero_copy allreduce.40mb.2ranks.zero_copy.ms allreduce.40mb.2ranks.shm allreduce.40mb.2ranks.tcp
  allreduce.4mb.4ranks.shm allreduce.256kb.2ranks.shm allreduce.4b.2ranks.shm.p50 allreduce.4b.2ranks.shm.p50.ratio
  broadcast.4mb allgather.4mb reduce_scatter.4mb alltoall.4mb sendrecv.4mb
  ddp.overhead_ms.mlp ddp.efficiency_2ranks.cnn ddp.efficiency_2ranks.mlp
  collectives.steady_state.allocations collectives.steady_state.page_faults
"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
: >"$folder/lines"
: >"$folder/failed"

for program in build/bin/bench_core_* $(ls build/bin/bench_* | grep -v bench_core_); do
  [ -f "$program" ] && [ -x "$program" ] || continue
  echo "== ${program##*/}"
  { timeout 1200 "$program" "$filter" || echo "${program##*/}" >>"$folder/failed"; } | tee -a "$folder/lines"
done
grep '^{' "$folder/lines" >>build/bench.jsonl

status=0
if [ -s "$folder/failed" ]; then
  echo "make bench: FAILED:" $(cat "$folder/failed")
  status=1
fi
for name in $names; do  # the contract: every one of these has its line
  case $name in *"$filter"*) ;; *) continue ;; esac
  if ! grep -qF "{\"name\":\"$name\"," "$folder/lines"; then
    echo "make bench: no line for $name"
    status=1
  fi
done
missed=$(sed -n 's/^{"name":"\([^"]*\)".*"met":false.*/\1/p' "$folder/lines")
if [ -n "$missed" ]; then
  echo "make bench: goals missed:" $missed
  [ "${STRICT:-0}" = 0 ] || status=1
fi
exit $status
