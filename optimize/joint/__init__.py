"""Co-design: one machine for many workloads, with the mappings of all."""
