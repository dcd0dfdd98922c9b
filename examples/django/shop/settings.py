"""The smallest Django that has an admin.

SHOP_FOLDER: where database and messages are kept; SHOP_BROKER: a broker's URL.
"""

import os
from pathlib import Path

FOLDER = Path(os.environ.get("SHOP_FOLDER", Path(__file__).parents[1] / "data"))
BROKER = os.environ.get("SHOP_BROKER", "filesystem://")
for name in ("messages", "control"):
    (FOLDER / name).mkdir(parents=True, exist_ok=True)

SECRET_KEY = "an example: make your own"
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "celery_qbeat.django",
    "shop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "shop.urls"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": FOLDER / "shop.sqlite3",
        # A beat writes, too: with transactions that begin as readers, SQLite would answer "database is locked".
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "/static/"
USE_TZ = True
TIME_ZONE = "Europe/Berlin"

CELERY_BROKER_URL = BROKER
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
if BROKER == "filesystem://":
    CELERY_BROKER_TRANSPORT_OPTIONS = {
        "data_folder_in": str(FOLDER / "messages"),
        "data_folder_out": str(FOLDER / "messages"),
        "control_folder": str(FOLDER / "control"),
        "polling_interval": 0.2,
    }
# Beat finds Django's database by itself.
CELERY_QBEAT_POLL_INTERVAL = 0.5
CELERY_QBEAT_CRON = True
CELERY_QBEAT_QUEUES = ["celery", "slow"]
