#!/bin/sh
# Makes ./secrets with a random password each, and the files that hold them. What is there stays.
set -eu
cd "$(dirname "$0")"
umask 077
mkdir -p secrets
# A container's user is another one than ours, and a file is mounted with the mode it has here: each
# file can be read by all, the folder be entered by its owner alone.
chmod 700 secrets

random() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }

# keep NAME: writes standard input to secrets/NAME unless there is one.
keep() {
    if [ ! -e "secrets/$1" ]; then
        cat >"secrets/$1.part"
        chmod 444 "secrets/$1.part"
        mv "secrets/$1.part" "secrets/$1"
        echo "made secrets/$1"
    fi
}

for name in superuser owner service valkey grafana; do
    random | keep "${name}_password"
done
valkey=$(cat secrets/valkey_password)
printf 'requirepass %s\n' "$valkey" | keep valkey_password.conf
printf 'redis://:%s@valkey:6379/0' "$valkey" | keep redis_url
printf 'postgresql://palimpsest_owner:%s@database:5432/palimpsest' \
    "$(cat secrets/owner_password)" | keep migration_database_url
printf 'postgresql://palimpsest_service:%s@database:5432/palimpsest' \
    "$(cat secrets/service_password)" | keep database_url
