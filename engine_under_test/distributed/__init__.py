"""KV beyond one process: a remote pool of KV blocks, its protocol, and the connector that an engine drives.

Here: `protocol` (the one table of states), `messages`, `frames`; the store's end (`store_pool`, `store_session`,
`kv_store`) and the engine's end (`connector`, `tcp`). Not here: who may run next, and the right to change KV memory. Start
reading at `protocol`.
"""
