"""The ledger beside an independent bill: whatever goes wrong, no job costs more than its cap."""
