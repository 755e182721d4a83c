"""The loop that turns wishes into machines: snapshot, plan, apply, record."""
