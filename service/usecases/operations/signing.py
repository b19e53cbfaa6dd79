"""Signs receipts with the tenant's Ed25519 key, and checks signatures without a database."""

from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from service.domain.log.receipts import NotAReceipt, Receipt, canonical


def public_key(seed: bytes) -> bytes:
    """Returns the public key of a seed, 32 bytes."""
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def sign(body: Mapping[str, Any], seed: bytes) -> Receipt:
    """Returns the receipt with that body."""
    key = Ed25519PrivateKey.from_private_bytes(seed)
    return Receipt(body=body, public_key=public_key(seed), signature=key.sign(canonical(body)))


def check_signature(receipt: Receipt) -> None:
    """Checks that the key in the receipt signed it, and nothing was changed since.

    Whether that key is the tenant's is another question. Raises NotAReceipt.
    """
    try:
        key = Ed25519PublicKey.from_public_bytes(receipt.public_key)
        key.verify(receipt.signature, canonical(receipt.body))
    except (InvalidSignature, ValueError, UnicodeEncodeError) as error:
        raise NotAReceipt("was changed after it was signed, or its key did not sign it") from error
