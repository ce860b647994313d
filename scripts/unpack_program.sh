#!/bin/sh
# Unpack a program from this distribution's packages into build/NAME, without installing it, for tests:
#     sh scripts/unpack_program.sh NAME usr/bin/PROGRAM PACKAGE[=VERSION]...
# Tests skip without the program, so everything that is missing here ends in a line and exit code 0.
set -eu
cd "$(dirname "$0")/.."
name=$1 program=$2 folder=build/$1
shift 2
if [ -x "/$program" ] || [ -x "$folder/$program" ]; then
    exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "no $name, and no apt to get its package: its tests are skipped"
    exit 0
fi
rm -rf "$folder.new"
mkdir -p "$folder.new/packages"
(cd "$folder.new/packages" && apt-get download "$@" >/dev/null 2>&1) || {
    echo "$name: $* can't be downloaded: its tests are skipped"
    rm -rf "$folder.new"
    exit 0
}
for package in "$folder.new"/packages/*.deb; do
    dpkg-deb -x "$package" "$folder.new"
done
rm -rf "$folder"
mv "$folder.new" "$folder"
