"""Several controllers of one database, killed again and again, and Postgres with them."""
