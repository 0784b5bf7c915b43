"""The figures the project claims, each measured by the script that prints it.

``python -m benchmarks.card`` measures everything that needs a GPU, ``python -m
benchmarks.host_split`` what needs none, ``python -m benchmarks.model_accuracy`` how well either
device is predicted (it exits with 1 beyond its bounds). Results go to ``benchmarks/results/`` as
JSON, with the machine, the versions and the commit they hold for. ``--quick`` runs any script at a
tiny size, on any machine: it checks contents and plumbing, its times mean nothing.
``python -m benchmarks.regenerate`` makes the tables and pictures of README and docs from them.
"""
