"""The Python client of Palimpsest."""

from pkgutil import extend_path

# In a checkout the generated messages (palimpsest.v1) lie in another folder than
# this package; installed from wheels both are one folder and this changes nothing.
__path__ = extend_path(__path__, __name__)
