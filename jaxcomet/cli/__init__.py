"""The command line: `jaxcomet machines`, `conventions`, `evaluate` and `compare`.

It sits on top of all other folders. A command module holds the signature and the printing; what is
computed stands in a module of its own (`ways`, `ranking`, `reasons`, `pricing`, `effects`), which
takes and returns plain objects and prints nothing. Which workloads there are, and their flags, is
read off the catalog (`flags`).
"""
