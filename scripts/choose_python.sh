#!/bin/sh
# Print the path of the Python to create .venv with. Print on standard error which one it is and why.
#
# ttnn has wheels for CPython 3.12 and 3.10 on x86-64 Linux. The script prefers those, in this order, on PATH or in the
# folder of a version manager. Any other Python from 3.10 on works too, but only with the emulator. The script tries each
# candidate: it must create a virtual environment and have the modules that Tiermesh needs.
set -u

needs='import ctypes, ensurepip, sqlite3, ssl, venv, zlib'
report='import os, sys; base = getattr(sys, "_base_executable", None) or sys.executable
print("%d.%d" % sys.version_info[:2], sys.implementation.name, os.path.realpath(base))'

# Print "VERSION PATH" of candidate $1 if it is a working CPython $2 ("3.12", or "any" for 3.10 and later).
try() {
    found=$("$1" -c "$needs
$report" 2>/dev/null </dev/null) || return 1
    version=${found%% *}
    rest=${found#* }
    [ "${rest%% *}" = cpython ] || return 1
    if [ "$2" = any ]; then
        minor=${version#3.}
        [ "$minor" != "$version" ] && [ "$minor" -ge 10 ] || return 1
    else
        [ "$version" = "$2" ] || return 1
    fi
    printf '%s %s\n' "$version" "${rest#* }"
}

# Print the version folders of version managers, one per line, including those whose shims are on PATH.
folders() {
    home=${HOME:-/nonexistent}
    printf '%s\n' "${PYENV_ROOT:-$home/.pyenv}/versions" "$home/.pyenv/versions" \
        "${ASDF_DATA_DIR:-$home/.asdf}/installs/python" \
        "${MISE_DATA_DIR:-${XDG_DATA_HOME:-$home/.local/share}/mise}/installs/python" \
        "${UV_PYTHON_INSTALL_DIR:-${XDG_DATA_HOME:-$home/.local/share}/uv/python}"
    printf '%s\n' "$PATH" | tr ':' '\n' | sed -n 's,/shims/*$,/versions,p'
}

# Print "VERSION PATH" of the first working CPython of version $1.
find_version() {
    for name in "python$1" python3 python; do
        command -v "$name" >/dev/null && try "$name" "$1" && return
    done
    [ "$1" = any ] && pattern='*' || pattern="*$1*"
    saved=$IFS
    IFS='
'
    for folder in $(folders); do
        for candidate in "$folder"/$pattern/bin/python3; do
            [ -x "$candidate" ] && try "$candidate" "$1" && IFS=$saved && return
        done
    done
    IFS=$saved
    return 1
}

for wanted in 3.12 3.10; do
    if found=$(find_version $wanted); then
        echo "Python ${found%% *}: ${found#* } (ttnn has a wheel for it)" >&2
        echo "${found#* }"
        exit 0
    fi
done
for wanted in 3.11 3.13 3.14 any; do
    if found=$(find_version $wanted); then
        echo "Python ${found%% *}: ${found#* } (no working 3.12 or 3.10, for which ttnn has wheels, is on PATH or" \
            "under a version manager; the emulator runs without it)" >&2
        echo "${found#* }"
        exit 0
    fi
done
echo "No CPython from 3.10 up with venv, ensurepip, ssl, sqlite3 and zlib is on PATH or under a version manager's" \
    "folder; install one (Debian: apt-get install python3 python3-venv), or name it: make PYTHON=/path/to/python3" >&2
exit 1
