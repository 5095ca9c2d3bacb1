#!/bin/sh
# Stands in for a script of ci/nightly/, ci/compare.sh or ci/bisect.sh: leaves the files that it would, and fails
# as FAULTS says: `report`, `measure:timm-cpu-float32-1` (in that cell), `compare:judge` (called so),
# `measure=hang`, `report=gate`.
stage="$(basename "$0" .sh)"
said="$CELL$1"
mkdir -p "$PERFDASH_NIGHTLY"
echo "$stage suites=$SUITES devices=$DEVICES dtypes=$DTYPES shard=$SHARD arguments=$*" >>"$PERFDASH_NIGHTLY/$stage.log"
for name in GITHUB_TOKEN PERFDASH_DB PERFDASH_SMTP_PASSWORD PERFDASH_WEBHOOK; do
  case "$(printenv "$name")" in *not-a-real-one*) echo "$stage gets $name" ;; esac
done
case "$stage:$1" in
  measure:*)
    mkdir -p "$OUT/run-${CELL:-none}"
    echo "measured" >"$OUT/run-${CELL:-none}/results.jsonl"
    ;;
  merge:*) ls "$NIGHT"/cells/*/out/*/results.jsonl >"$NIGHT/merged" || exit 3 ;;
  post:* | *:post) echo "the token is $GITHUB_TOKEN" ;;
  publish:*) mkdir -p site && echo "<html>" >site/index.html ;;
  compare:measure) echo "measured" >"$PERFDASH_NIGHTLY/results.jsonl" ;;
  bisect:) echo "measured" >"$PERFDASH_NIGHTLY/journal.jsonl" ;;
esac
case " $FAULTS " in
  *" $stage "* | *" $stage:$said "*) echo "$stage breaks" >&2; exit 7 ;;
  *" $stage=gate "* | *" $stage=gate:$said "*) code=1 ;;
  *" $stage=hang "* | *" $stage=hang:$said "*) sleep 100 ;;
esac
junit() {
  echo '<testsuite><testcase name="a"/></testsuite>' >junit.xml
  if [ -n "$code" ]; then echo '<testsuite><testcase name="a"><failure/></testcase></testsuite>' >junit.xml; fi
}
case "$stage:$1" in
  report:*)
    cd "$NIGHT" || exit 3
    mkdir -p plot
    junit
    echo "<html>" >night.html
    for name in speedup_geometric_mean pass_rate_percent compilation_seconds_mean compression_ratio_geometric_mean; do
      printf 'timm\n1.2\n' >"plot/$name.csv"
    done
    ;;
  compare:judge)
    cd "$PERFDASH_NIGHTLY" || exit 3
    junit
    echo "<html>" >night.html
    ;;
  bisect:) echo "<html>" >"$PERFDASH_NIGHTLY/report.html" ;;
esac
exit "${code:-0}"
