"""The gate that the tests have teeth: guards are taken away, and the checker must notice."""
