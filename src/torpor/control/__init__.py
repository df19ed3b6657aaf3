"""The loop: observe, judge, plan, claim, execute, settle, persist, again and again."""
