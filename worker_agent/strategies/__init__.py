"""Ways of training together; each module imports its framework, the session imports it lazily."""
