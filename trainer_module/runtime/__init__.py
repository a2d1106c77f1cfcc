"""Devices and processes: strategies, cluster, precision, memory, preemption, profiling."""
