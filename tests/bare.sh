#!/usr/bin/env bash
# Run the README's two commands in a clone of HEAD on a bare Debian: debootstrap's minbase with
# python3, python3-venv, make and git, and no compiler. Needs root and debootstrap.
#
#   tests/bare.sh [SUITE] [USER] [TARGET...]
#
# SUITE: bookworm (Python 3.11, default) or trixie (Python 3.13).
# USER:  root, or tester (default), an unprivileged user that the script creates.
# TARGET: targets of make, default: demo test.
# BARE_ROOTS: folder of the systems; each system is created once, and each run clones HEAD.
set -euo pipefail
suite=${1:-bookworm} user=${2:-tester}
targets=("${@:3}")
[ ${#targets[@]} -gt 0 ] || targets=(demo test)
tree=$(cd "$(dirname "$0")/.." && pwd)
roots=${BARE_ROOTS:-/var/tmp/swarm-node-bare}
root=$roots/$suite

if [ "${BARE_INSIDE:-}" != 1 ]; then
    [ "$(id -u)" = 0 ] || { echo "tests/bare.sh needs root: sudo tests/bare.sh $*" >&2; exit 2; }
    command -v debootstrap > /dev/null ||
        { echo "debootstrap is missing: apt-get install debootstrap" >&2; exit 2; }
    if [ ! -e "$root/complete" ]; then
        rm -rf "$root"
        mkdir -p "$root"
        # Use this machine's configured mirror, or Debian's default.
        mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2> /dev/null |
            grep -m 1 -E '/debian/?$' || true)
        debootstrap --variant=minbase --include=python3,python3-venv,make,git,ca-certificates \
            "$suite" "$root" ${mirror:+"$mirror"} > "$root.log" 2>&1 ||
            { tail -n 20 "$root.log" >&2; exit 1; }
        chroot "$root" useradd --create-home tester
        touch "$root/complete"
    fi
    # Mount in a separate namespace, so that no mount remains after any exit.
    BARE_INSIDE=1 exec unshare --mount --propagation private "$0" "$suite" "$user" "${targets[@]}"
fi

mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
# Copy this machine's access to packages: host names, certificates and pip's configuration.
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
mount --bind -o ro /etc/ssl/certs "$root/etc/ssl/certs"
if [ -d /usr/local/share/ca-certificates ]; then
    mount --bind -o ro /usr/local/share/ca-certificates "$root/usr/local/share/ca-certificates"
fi
{
    echo "[global]"
    python3 -m pip config list | sed -nE "s/^global\.(cert|find-links|index-url)='(.*)'$/\1 = \2/p"
} > "$root/etc/pip.conf"
for folder in $(python3 -m pip config get global.find-links 2> /dev/null || true); do
    if [ -d "$folder" ]; then
        mkdir -p "$root$folder"
        mount --bind -o ro "$folder" "$root$folder"
    fi
done
kept=()
while IFS= read -r pair; do kept+=("$pair"); done < <(
    env | grep -E '^(PIP_|UV_|SSL_CERT_|HTTPS?_PROXY=|https?_proxy=|NO_PROXY=|no_proxy=|TORCH=|DEMO_OPTIONS=)' || true)

home=/root
[ "$user" = root ] || home=/home/$user
rm -rf "$root$home/swarm-node"
git -c safe.directory="$tree/.git" clone --quiet "$tree" "$root$home/swarm-node"
chroot "$root" chown -R "$user" "$home/swarm-node"
# Use pivot_root, because chroot forbids user namespaces, which the verifier's sandbox needs.
mkdir -p "$root/before"
cd "$root"
pivot_root . before
cd /
umount --lazy /before
printf -v script '%q ' "${targets[@]}"
runuser -u "$user" -- env -i HOME="$home" USER="$user" LANG=C.UTF-8 \
    PATH=/usr/local/bin:/usr/bin:/bin "${kept[@]}" sh -ec "
    cd $home/swarm-node
    if command -v cc gcc > /dev/null; then echo 'this system is not bare: it has a compiler'; exit 1; fi
    . /etc/os-release
    for target in $script; do
        began=\$(date +%s)
        make \$target
        echo \"\$PRETTY_NAME, \$(python3 --version), \$(id -un): make \$target: \$((\$(date +%s) - began)) s\"
    done"
rm -rf "$home/swarm-node"
