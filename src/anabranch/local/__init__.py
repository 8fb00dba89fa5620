"""A local Spark for scripts, tests and notebooks that have no session yet."""

from anabranch.local.session import ensure_java, is_local, local_session, spark_session, usable_cores
from anabranch.local.signals import asked_to_stop

__all__ = ["asked_to_stop", "ensure_java", "is_local", "local_session", "spark_session", "usable_cores"]
