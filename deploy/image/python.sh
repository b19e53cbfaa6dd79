#!/bin/sh
# Run inside the image's build stage, in two steps of which the first changes seldom:
#   libraries   what the locks name, into /opt/palimpsest
#   service     our wheels beside them; then less what nobody runs, the list of parts, byte code
set -eu
source=/source
target=/opt/palimpsest
tools=/opt/tools

pip() {
    python=$1
    shift
    "$tools/bin/pip" --python "$python" install --quiet --no-compile --only-binary :all: \
        --disable-pip-version-check --root-user-action ignore "$@"
}

libraries() {
    set -a
    # shellcheck disable=SC1091 # a secret of the build
    [ ! -f /run/secrets/registries ] || . /run/secrets/registries
    [ ! -s /run/secrets/ca ] || PIP_CERT=/run/secrets/ca
    set +a
    python3 -m venv "$tools"
    python3 -m venv --without-pip "$target"
    pip "$tools/bin/python" --require-hashes -r "$source/requirements/image.lock"
    pip "$target/bin/python" --require-hashes --no-deps --report /libraries.json \
        -r "$source/requirements/server.lock"
}

service() {
    for project in proto clients/python .; do
        (cd "$source/$project" && "$tools/bin/python" -m hatchling build --target wheel --directory /wheels >/dev/null)
    done
    pip "$target/bin/python" --no-deps --no-index --report /ours.json /wheels/*.whl

    packages=$(echo "$target"/lib/python3.*/site-packages)
    # Tests of libraries.
    find "$packages" -type d -name tests -prune -exec rm -rf {} +
    # What we do not use of litellm: the pages of its proxy, native code without which it does chats
    # and embeddings in Python, as it does with it (its rust_bridge/catalog.py), and what would
    # download models for a tokenizer from a hub.
    rm -rf "$packages/litellm/proxy/_experimental/out" "$packages/litellm/proxy/swagger" \
        "$packages"/litellm/rust_bridge/_native.*.so "$packages"/hf_xet "$packages"/hf_xet-*
    # Programs of libraries, and shells' helpers.
    find "$target/bin" -mindepth 1 ! -name 'python*' ! -name palimpsest -delete
    find "$packages" -name direct_url.json -delete

    mkdir -p /usr/share/palimpsest
    "$tools/bin/python" "$source/deploy/image/sbom.py" --packages "$packages" --system /system \
        --report /libraries.json --report /ours.json >/usr/share/palimpsest/sbom.cdx.json
    cp "$source/LICENSE" /usr/share/palimpsest/

    # Byte code that stands without looking at its source's time, which an image does not keep.
    # litellm's proxy is not run: of its packages those alone that its library imports.
    "$target/bin/python" -m compileall -q --invalidation-mode unchecked-hash \
        -x '/litellm/proxy/(?!common_utils|pass_through_endpoints|spend_tracking|[^/]*$)' "$packages"
}

"$1"
