"""What a process needs beside its work: clock, log, heartbeat file, signals."""
