"""Checks the settings of an issuer of JSON Web Tokens."""

from service.settings.config import Config

#: Where an issuer describes itself (OpenID Connect Discovery 1.0, section 4).
_DISCOVERY = "/.well-known/openid-configuration"


def refusal(config: Config) -> str | None:
    """Returns why these settings cannot be used together, and what to set, else None."""
    if config.jwt_issuer is not None and config.jwt_audience is None:
        return (
            "PALIMPSEST_JWT_ISSUER is set, and PALIMPSEST_JWT_AUDIENCE is not: a token for any"
            " other service of the issuer would be accepted; set the audience of this one"
        )
    if config.jwt_issuer is None and (config.jwt_audience or config.jwt_jwks_url):
        return "PALIMPSEST_JWT_ISSUER is not set, and other settings of tokens are: set it"
    return None


def discovery_url(issuer: str) -> str:
    """Returns where the issuer's discovery document is."""
    return issuer.rstrip("/") + _DISCOVERY
