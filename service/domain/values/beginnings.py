"""Finds how far two texts are alike from their start."""


def common_characters(one: str, other: str, start: int = 0) -> int:
    """Returns how many characters two texts begin with alike, `start` of which are known to be."""
    low, high = start, min(len(one), len(other))
    step = 64
    # What differs is mostly near the start, or nowhere: slices are compared, not characters.
    while low < high:
        end = min(low + step, high)
        if one[low:end] == other[low:end]:
            low, step = end, step * 2
        elif end - low == 1:
            return low
        else:
            high, step = end - 1, max((end - low) // 2, 1)
    return low
