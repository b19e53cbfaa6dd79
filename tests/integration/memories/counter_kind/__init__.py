"""A fourth kind of memory, which counts the chunks of its log. It lives in the tests alone."""
