"""The process of the user, started and watched."""
