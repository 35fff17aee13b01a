"""An engine beyond one process: a remote pool of KV blocks, and a group of ranks that computes as one runner.

Here: `protocol` (the one table of states), `messages`, `frames`; the store's end (`store_pool`, `store_session`,
`kv_store`) and the engine's end (`connector`, `tcp`). And `ranks` (the driver's end of a group), `rank_worker` (a rank),
`rank_nursery` (whoever gives birth to ranks), `rank_supervisor` (an engine that outlives its ranks). Not here: who may run
next, and the right to change KV memory. Start reading at `protocol`, and at `ranks`.
"""
