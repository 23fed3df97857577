"""Settings: one frozen tree, where each value came from, and the only reader of the environment."""

from octavo.config.checks import Fault, parse_fault
from octavo.config.schema import (
    CacheConfig,
    Config,
    ConfigError,
    EngineConfig,
    ModelConfig,
    QueueConfig,
    SchedulerConfig,
    ServerConfig,
)

__all__ = [
    "CacheConfig",
    "Config",
    "ConfigError",
    "EngineConfig",
    "Fault",
    "ModelConfig",
    "QueueConfig",
    "SchedulerConfig",
    "ServerConfig",
    "parse_fault",
]
