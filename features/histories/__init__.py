"""A model of the lifecycle: random histories, a simulated API and simulated time, judged each step.

The real ledger, driver and client interface are driven pass by pass. `clock` is the time, `api` the
API, `process` a process that drives, `machine` the random histories, with `live_machine`,
`conversation_machine`, `restore_machine`, `orders_machine` and `join_machine` for what only some of
them have, `verdict` what must hold, and `mutants` the broken rules that prove that a broken promise
is seen.
"""
