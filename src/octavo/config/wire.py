"""Config as bytes: for the engine process, and for `--json`."""

import msgspec

from octavo.config.schema import Config, ConfigError


def encode(config: Config) -> bytes:
    """`config` as JSON; `decode` gives an equal tree. Secrets are in it: for our own processes only."""
    return msgspec.json.encode(config)


def decode(data: bytes) -> Config:
    """Raises ConfigError for anything that `encode` cannot have written."""
    try:
        return msgspec.json.decode(data, type=Config)
    except (msgspec.MsgspecError, ConfigError) as error:
        raise ConfigError(f"not an encoded configuration: {error}") from error
