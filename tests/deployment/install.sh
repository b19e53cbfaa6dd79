#!/bin/sh
# Installs packages of Debian and starts none of their services, neither now nor with the machine:
# the tests start programs themselves, at ports of their own.
set -eu
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
for name in "$@"; do
    if [ -e "/etc/init.d/$name" ]; then
        update-rc.d "$name" disable
    fi
done
