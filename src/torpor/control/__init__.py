"""The reconcile loop (observe, judge, plan, settle, persist, execute) and the duties of the leader."""
