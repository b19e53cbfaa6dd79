#!/bin/sh
# Run inside the image's first stage: takes away from a Debian with Python what no service needs
# (installers, Perl, programs that act as root), and makes the user that it runs as.
set -eu

purge() {
    # Those of the names that are installed.
    found=$(for name in "$@"; do
        dpkg-query --show --showformat '${db:Status-Status} ${Package}\n' "$name" 2>/dev/null || true
    done | sed -n 's/^installed //p')
    # shellcheck disable=SC2086 # one word each
    [ -z "$found" ] || dpkg --purge --force-all $found >/dev/null 2>&1
}

# Perl last: the scripts of what goes before may need it.
purge python3-venv python3.11-venv python3-pip-whl python3-setuptools-whl python3-distutils \
    python3-lib2to3 python3-pip python3-setuptools python3-wheel python3-dev \
    usrmerge libfile-find-rule-perl libnumber-compare-perl libtext-glob-perl \
    apt libapt-pkg6.0 gpgv debian-archive-keyring e2fsprogs logsave libext2fs2 \
    mount util-linux util-linux-extra bsdutils login passwd ncurses-bin
purge perl perl-modules-5.36 libperl5.36 libgdbm-compat4 perl-base debconf

# Of Python what installs, teaches, tests or draws, in the base's own place.
library=$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
rm -rf "$library"/ensurepip "$library"/idlelib "$library"/lib2to3 "$library"/test \
    "$library"/tkinter "$library"/turtledemo "$library"/turtle.py "$library"/pydoc_data \
    "$library"/config-3.* "$library"/site-packages/* \
    /usr/local/bin/pip* /usr/local/bin/wheel /usr/local/bin/idle* /usr/local/bin/pydoc* \
    /usr/local/bin/2to3* /usr/local/bin/python3*-config /usr/local/include

# Byte code that stands without looking at its source's time, which an image does not keep.
find / -xdev -name __pycache__ -type d -prune -exec rm -rf {} +
PYTHONHASHSEED=0 python3 -m compileall -q --invalidation-mode unchecked-hash "$library"

# No program becomes another user.
find / -xdev -type f -perm /6000 -exec chmod ug-s {} +

rm -rf /var/cache/* /var/log/* /var/lib/apt /var/lib/dpkg/*-old /var/tmp/* /tmp/* /root/.[!.]* \
    /usr/share/man /usr/share/info /usr/share/locale /etc/machine-id /etc/*-

echo "palimpsest:x:65532:65532:Palimpsest:/tmp:/usr/sbin/nologin" >>/etc/passwd
echo "palimpsest:x:65532:" >>/etc/group
install -d -m 0700 -o 65532 -g 65532 /run/palimpsest
