#!/bin/sh
# Installs the tidegate program:
#
#   curl -fsSL https://github.com/tidegate/tidegate/releases/latest/download/install.sh | sh
#   ... | sh -s -- --to /usr/local/bin --version 0.1.0
#
# It downloads the archive of this machine and its checksum, compares them, and copies one file. It
# needs curl or wget, and sha256sum, shasum or openssl. TIDEGATE_DOWNLOAD_URL names another place that
# has the files of a release.

set -eu

repository=https://github.com/tidegate/tidegate

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

has() {
    command -v "$1" >/dev/null 2>&1
}

usage() {
    cat <<'END'
usage: install.sh [--to FOLDER] [--version VERSION]

  --to FOLDER        where the program goes (default: ~/.local/bin)
  --version VERSION  the release, such as 0.1.0 (default: the latest)
END
}

# target: prints the name of this machine in the names of archives.
target() {
    system=$(uname -s)
    machine=$(uname -m)
    case "$machine" in
        x86_64 | amd64) processor=x86_64 ;;
        arm64 | aarch64) processor=aarch64 ;;
        *) fail "there is no binary for the processor $machine: build it from source" ;;
    esac
    case "$system" in
        Linux) echo "$processor-unknown-linux-musl" ;;
        Darwin)
            # A shell that Rosetta translates runs on an Apple processor.
            if [ "$(sysctl -n sysctl.proc_translated 2>/dev/null || echo 0)" = 1 ]; then
                processor=aarch64
            fi
            echo "$processor-apple-darwin"
            ;;
        *) fail "there is no binary for $system: build it from source" ;;
    esac
}

# download URL FILE
download() {
    if has curl; then
        # A redirect must not lead to an unencrypted address: the checksum comes the same way.
        case "$1" in https:*) schemes='=https' ;; *) schemes='=http,https' ;; esac
        curl --fail --silent --show-error --location --proto "$schemes" --retry 3 --output "$2" "$1"
    elif has wget; then
        wget --quiet --tries=3 --output-document="$2" "$1"
    else
        fail "it needs curl or wget"
    fi || fail "$1 cannot be downloaded"
}

# sha256 FILE: prints its checksum.
sha256() {
    if has sha256sum; then
        sha256sum "$1" | cut -d ' ' -f 1
    elif has shasum; then
        shasum -a 256 "$1" | cut -d ' ' -f 1
    elif has openssl; then
        openssl dgst -sha256 -r "$1" | cut -d ' ' -f 1
    else
        fail "it needs sha256sum, shasum or openssl, to compare the checksum"
    fi
}

# A function, so that a script that was downloaded in part does nothing.
main() {
    to=
    version=
    while [ $# -gt 0 ]; do
        case "$1" in
            --to | --version)
                [ $# -ge 2 ] || fail "$1 needs a value"
                if [ "$1" = --to ]; then to=$2; else version=${2#v}; fi
                shift 2
                ;;
            --help | -h)
                usage
                exit 0
                ;;
            *)
                usage >&2
                exit 2
                ;;
        esac
    done
    if [ -z "$to" ]; then
        [ -n "${HOME:-}" ] || fail "HOME is not set: give --to FOLDER"
        to=$HOME/.local/bin
    fi
    url=$repository/releases/latest/download
    [ -z "$version" ] || url=$repository/releases/download/v$version
    if [ -n "${TIDEGATE_DOWNLOAD_URL:-}" ]; then
        [ -z "$version" ] || fail "--version and TIDEGATE_DOWNLOAD_URL exclude each other"
        url=$TIDEGATE_DOWNLOAD_URL
    fi

    name=tidegate-$(target)
    archive=$name.tar.gz
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' HUP INT TERM

    download "$url/SHA256SUMS" "$work/SHA256SUMS"
    # The second field may have a star, the mark of a file that was read as binary.
    expected=$(awk -v name="$archive" '{ file = $2; sub(/^\*/, "", file) } file == name { print $1 }' \
        "$work/SHA256SUMS")
    [ -n "$expected" ] || fail "$url/SHA256SUMS does not list $archive"
    download "$url/$archive" "$work/$archive"
    found=$(sha256 "$work/$archive")
    [ "$found" = "$expected" ] ||
        fail "the checksum of $archive is $found, and SHA256SUMS says $expected: nothing was installed"

    tar -xzf "$work/$archive" -C "$work"
    mkdir -p "$to"
    # A rename replaces the file of a program that runs.
    cp "$work/$name/tidegate" "$to/.tidegate.new"
    chmod 755 "$to/.tidegate.new"
    mv -f "$to/.tidegate.new" "$to/tidegate"
    echo "installed $("$to/tidegate" --version) as $to/tidegate"

    case ":$PATH:" in
        *":$to:"*) ;;
        *) echo "Add it to your PATH: export PATH=\"$to:\$PATH\"" ;;
    esac
    echo "Try it: tidegate demo"
}

main "$@"
