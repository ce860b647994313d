#!/bin/sh
# Unpack Chromium from this distribution's packages into build/chromium, without installing it, for the tests of the page.
# They skip without a browser, so everything that is missing here ends in a line and exit code 0.
set -eu
cd "$(dirname "$0")/.."
folder=build/chromium
if [ -x /usr/lib/chromium/chromium ] || [ -x "$folder/usr/lib/chromium/chromium" ]; then
    exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "no chromium, and no apt to get its package: tests of the page in a browser are skipped"
    exit 0
fi
rm -rf "$folder.new"
mkdir -p "$folder.new/packages"
# What of its dependencies is not installed comes too.
(
    packages=$(apt-get install --simulate --no-install-recommends chromium fonts-dejavu-core | sed -n 's/^Inst \([^ ]*\).*/\1/p')
    cd "$folder.new/packages"
    # shellcheck disable=SC2086  # it is a list
    apt-get download $packages
) >/dev/null 2>&1 || {
    echo "chromium's packages can't be downloaded: tests of the page in a browser are skipped"
    rm -rf "$folder.new"
    exit 0
}
for package in "$folder.new"/packages/*.deb; do
    dpkg-deb -x "$package" "$folder.new"
done
cat > "$folder.new/fonts.conf" <<'CONF'
<?xml version="1.0"?>
<fontconfig>
<dir prefix="relative">usr/share/fonts</dir>
<dir>/usr/share/fonts</dir>
<match>
<test name="family"><string>monospace</string></test>
<edit name="family" mode="assign" binding="strong"><string>DejaVu Sans Mono</string></edit>
</match>
<match>
<test name="family"><string>ui-monospace</string></test>
<edit name="family" mode="assign" binding="strong"><string>DejaVu Sans Mono</string></edit>
</match>
<match>
<test name="family" compare="not_eq"><string>DejaVu Sans Mono</string></test>
<edit name="family" mode="assign" binding="strong"><string>DejaVu Sans</string></edit>
</match>
</fontconfig>
CONF
rm -rf "$folder" "$folder.new/packages"
mv "$folder.new" "$folder"
