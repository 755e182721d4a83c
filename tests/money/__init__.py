"""The ledger beside an independent bill: under every fault, no job costs more than its cap."""
