"""The executor: model calls that outlive the worker which asked for them.

A worker that is killed between a provider's reply and its commit would have to pay again.
So calls are made by another process, which a worker starts for itself, or which several
workers of a machine share: it stores the reply whether the worker still lives or not.
"""
