#!/bin/sh
# Makes ./secrets with a random password each, and the files that hold them, and an authority with a
# certificate for the API. What is there stays.
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

# certificate: makes secrets/ca.pem, whose key stays here, and what the API and the proxy show.
certificate() {
    made=$(mktemp -d)
    trap 'rm -rf "$made"' EXIT
    curve='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'
    if [ ! -e secrets/ca.pem ]; then
        # shellcheck disable=SC2086
        openssl req -x509 $curve -days 3650 -subj "/CN=Palimpsest on $(hostname)" \
            -keyout "$made/ca.key" -out "$made/ca.pem" 2>/dev/null
        keep ca.pem <"$made/ca.pem"
        keep ca.key <"$made/ca.key"
        chmod 400 secrets/ca.key
    fi
    # shellcheck disable=SC2086
    openssl req $curve -subj /CN=localhost -keyout "$made/api.key" -out "$made/api.csr" 2>/dev/null
    printf 'subjectAltName=DNS:localhost,DNS:api,IP:127.0.0.1\nextendedKeyUsage=serverAuth\n' \
        >"$made/api.ext"
    openssl x509 -req -days 825 -in "$made/api.csr" -extfile "$made/api.ext" -set_serial "0x$(random | cut -c 1-30)" \
        -CA secrets/ca.pem -CAkey secrets/ca.key -out "$made/api.pem" 2>/dev/null
    # The names under which HAProxy finds the key of a certificate.
    keep api.pem <"$made/api.pem"
    keep api.pem.key <"$made/api.key"
}
if [ ! -e secrets/api.pem ] || [ ! -e secrets/api.pem.key ]; then
    command -v openssl >/dev/null || { echo "install openssl and try again" >&2; exit 1; }
    rm -f secrets/api.pem secrets/api.pem.key
    certificate
fi
