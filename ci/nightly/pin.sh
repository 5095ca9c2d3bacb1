#!/usr/bin/env bash
# The build that all cells of a night of Jenkins measure, into the file `build`: TORCH=nightly as a version,
# UNDER_TEST with its commit or version. A cell may wait for its agent for hours, while newer ones appear.
# ci/nightly/cells.sh gives it to each cell.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_night
if [ -s "$PERFDASH_NIGHTLY/build" ]; then exit 0; fi
if ci/torch_build.sh --pin >"$PERFDASH_NIGHTLY/.build"; then
  mv "$PERFDASH_NIGHTLY/.build" "$PERFDASH_NIGHTLY/build"
  say "All cells measure $(paste -sd' ' "$PERFDASH_NIGHTLY/build")"
else
  rm -f "$PERFDASH_NIGHTLY/.build"
  say "Which build is the newest cannot be found out on $(hostname): see above. Each cell takes the newest when it" \
    "begins, so cells may measure different builds, and shards of different builds are not merged."
fi
