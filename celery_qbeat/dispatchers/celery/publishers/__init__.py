"""Publishers: how messages reach a broker. One at a time on any transport, many together on Redis and RabbitMQ."""
