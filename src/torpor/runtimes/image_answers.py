"""Decide whether a failed pull of an image can succeed later."""

from torpor.domain.errors import Code, Failed

# What registries and engines answer if another attempt would get the same answer.
FINAL_ANSWERS = (
    *("manifest unknown", "manifest for", "name unknown", "repository does not exist", "invalid reference", "not found"),
    *("denied", "unauthorized", "no basic auth credentials", "authentication required", "forbidden", "no matching manifest"),
    *("repository name not known",),
)


def pull_failed(image: str, answer: str) -> Failed:
    is_final = any(words in answer.lower() for words in FINAL_ANSWERS)
    code = Code.IMAGE_PULL_FAILED if is_final else Code.IMAGE_PULL_INTERRUPTED
    return Failed(code, f"cannot pull the image {image!r}: {answer}", image=image)
