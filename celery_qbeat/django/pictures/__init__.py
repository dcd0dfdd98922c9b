"""SVG made on the server. Colours are classes, so that they follow the admin's light and dark; every meaning that has a
colour also has a sign, a pattern or a word."""

from celery_qbeat.django.pictures.heatmap import heatmap
from celery_qbeat.django.pictures.timeline import Bar, timeline

__all__ = ["Bar", "heatmap", "timeline"]
