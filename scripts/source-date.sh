#!/bin/sh
# Prints the time of the sources in seconds since 1970: SOURCE_DATE_EPOCH, or the time of the commit, or, without git, that
# of the changelog. What is packed carries this time, so that it is the same whenever it is packed.
set -eu
cd "$(dirname "$0")/.."

if [ -n "${SOURCE_DATE_EPOCH:-}" ]; then
    echo "$SOURCE_DATE_EPOCH"
else
    git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md
fi
