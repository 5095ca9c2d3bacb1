#!/usr/bin/env bash
# The night's means for Jenkins' plot plugin, NIGHT/trend/METRIC.csv: the columns of all its runs side by side.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_night
cd "$PERFDASH_NIGHTLY"
mkdir -p trend
for metric in speedup_geometric_mean pass_rate_percent compilation_seconds_mean compression_ratio_geometric_mean; do
  paste -d, plot*/"$metric.csv" >"trend/$metric.csv"
done
