"""Makes model calls in a process that survives the worker which ordered them.

A worker killed between a provider's reply and its commit would have to pay again. So another
process makes the calls, and stores the replies even if the worker is gone. A worker starts one for
itself, or the workers of a machine share one.
"""
