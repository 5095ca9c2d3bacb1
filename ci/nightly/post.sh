#!/usr/bin/env bash
# The night as a comment of ISSUE of REPO, with POST=yes; POST=dry prints it. Posted again, it is edited.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_night
case "$POST" in
  no) exit 0 ;;
  yes | dry) ;;
  *) complain 2 "POST=$POST is none of yes, no, dry" ;;
esac
if [ -z "$REPO" ] || [ -z "$ISSUE" ]; then complain 2 "POST=$POST needs REPO=OWNER/NAME and ISSUE=NUMBER"; fi

post() { # RUN
  local words=(--repo "$REPO" --issue "$ISSUE" --out "$OUT")
  if [ -n "$BASELINE" ]; then words+=(--baseline "$BASELINE"); fi
  if [ -n "$SITE_URL" ]; then words+=(--site-url "$SITE_URL"); fi
  if [ -n "$GITHUB_API" ]; then words+=(--base-url "$GITHUB_API"); fi
  if [ -n "$NEW_ISSUE_ON" ]; then words+=(--new-issue-on "$NEW_ISSUE_ON"); fi
  if [ "$POST" = dry ]; then words+=(--dry-run); fi
  perfdash post "$1" "${words[@]}"
}

for_each_run post
