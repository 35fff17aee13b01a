"""What may run next: pure decisions over a read-only view, without torch and without state of their own.

`door.py` refuses what is impossible, `policy.py` orders, `admission.py` decides who may enter from the queue into the running
set, `scheduler.py` chooses victims and writes the plan. Nothing here changes anything. Start reading at `scheduler.py`.
"""
