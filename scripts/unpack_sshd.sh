#!/bin/sh
# Unpack sshd from this distribution's package into build/sshd, without installing it, for the tests of tiermesh launch.
# They skip without an sshd, so everything that is missing here ends in a line and exit code 0.
set -eu
cd "$(dirname "$0")/.."
folder=build/sshd
if [ -x /usr/sbin/sshd ] || [ -x "$folder/usr/sbin/sshd" ]; then
    exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "no sshd, and no apt to get its package: tests of tiermesh launch over ssh are skipped"
    exit 0
fi
rm -rf "$folder.new"
mkdir -p "$folder.new/packages"
(cd "$folder.new/packages" && apt-get download openssh-server libwrap0 >/dev/null 2>&1) || {
    echo "sshd's package can't be downloaded: tests of tiermesh launch over ssh are skipped"
    rm -rf "$folder.new"
    exit 0
}
for package in "$folder.new"/packages/*.deb; do
    dpkg-deb -x "$package" "$folder.new"
done
rm -rf "$folder"
mv "$folder.new" "$folder"
