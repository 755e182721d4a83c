"""The real trainers in real jobs: make test-integrations, with libraries of its own."""
