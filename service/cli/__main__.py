"""`python -m service.cli` is `palimpsest`."""

from service.cli import main

main()
