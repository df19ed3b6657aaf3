"""Tell apart jobs with other orders, without revealing the secrets in them."""

import hashlib
import hmac

from torpor.ports import HomeJob


def order_of(job: HomeJob, installation_key: bytes) -> str:
    given = b"\0".join([*(word.encode() for word in job.argv), job.stdin])
    return hmac.digest(installation_key, hashlib.sha256(given).digest(), "sha256").hex()
