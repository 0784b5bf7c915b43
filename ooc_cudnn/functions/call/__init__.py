"""The path of a call: arguments are bound, a plan is found or made, and run.

From a declaration (`decorator`, `spec`, `arguments`) by `bind` (arrays) and `call_cache` to `plan`
or `plan_chain`, `run` and `observe`; `plan_api` plans without running.
"""
