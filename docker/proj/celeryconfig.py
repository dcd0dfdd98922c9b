"""Settings from the environment, see docker-compose.yml."""

import os

broker_url = os.environ["BROKER_URL"]
broker_connection_retry_on_startup = True

qbeat_database_url = os.environ["DATABASE_URL"]
qbeat_redis_url = os.environ["LOCK_URL"]
