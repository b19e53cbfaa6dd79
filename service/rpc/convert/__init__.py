"""Between the proto's messages and our values, by room."""
