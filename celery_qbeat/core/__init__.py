"""The rules without clock, input or output: schedules, jobs, plans, the agenda, privileges, health, the audit."""
