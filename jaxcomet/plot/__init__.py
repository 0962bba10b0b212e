"""Figures of results (`breakdown`), and the groups that latencies are summed into (`groups`).

Nothing is re-exported here, so that the groups can be had without importing matplotlib.
"""
